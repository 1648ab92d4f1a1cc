"""Contains `Invocation`, the options that all verbs share, and the opening of the directory that
they name.

`-d` may be given before and after the verb; without it `EMBEDLOG_DIR` names the directories. An
option that names a network is refused with the reason.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

import embedlog
from embedlog.tools.cli import examples
from embedlog.tools.cli.progress import make_load_progress

Function = TypeVar("Function", bound=Callable[..., Any])

VARIABLE = "EMBEDLOG_DIR"
NETWORK = (
    "--bootstrap-server",
    "--bootstrap-controller",
    "--broker-list",
    "--zookeeper",
    "--command-config",
    "--consumer.config",
    "--producer.config",
    "-b",
)
_REASON = "there is no server and no network connection; -d DIRECTORY or EMBEDLOG_DIR names the log"


@dataclass
class Invocation:
    """The options of one command line that are not those of its verb."""

    directories: tuple[str, ...] = ()
    json: bool = False
    debug: bool = False

    def named_directories(self) -> list[str]:
        """The directories of the command line, or of the environment variable."""
        if self.directories:
            return list(self.directories)
        return [path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]


def current() -> Invocation:
    """The invocation of the verb that runs."""
    invocation = click.get_current_context().find_object(Invocation)
    assert invocation is not None, "a verb is called by the program"
    return invocation


def directories() -> list[str]:
    """The directories of the log. Raises UsageError if none is given."""
    paths = current().named_directories()
    if not paths:
        raise click.UsageError(f"no log directory: give -d DIRECTORY, or set {VARIABLE}")
    return paths


def open_log(
    *, read_only: bool = True, create: bool = False, restored: bool = False
) -> embedlog.Log:
    """The log of this invocation: one directory, or a set. It is created only if `create`.
    `restored`: as `embedlog.open`.
    """
    paths = directories()
    path = paths[0] if len(paths) == 1 else paths
    try:
        return embedlog.open(
            path,
            read_only=read_only,
            create=create,
            restored=restored,
            progress=make_load_progress(),
        )
    except embedlog.StorageError as problem:
        if len(paths) > 1 or problem.errno != errno.ENOENT or os.path.lexists(paths[0]):
            raise
        text = "no such log directory; topics --create makes one"
        raise embedlog.StorageError(
            text, errno=errno.ENOENT, path=os.path.abspath(paths[0])
        ) from problem


def write_examples(verb: str | None, formatter: click.HelpFormatter) -> None:
    """Write the examples of a verb at the end of its help; a command line is not broken, so that it
    can be copied.
    """
    lines = examples.example_lines(verb or "")
    if lines:
        with formatter.section("Examples"):
            for line in lines:
                formatter.write(f"{' ' * formatter.current_indent}{line}\n")


class VerbGroup(click.Group):
    """A verb with verbs of its own."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(self.name, formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        check_is_verb(args[0], self.list_commands(ctx), ctx)
        return super().resolve_command(ctx, args)


def check_is_verb(
    name: str, verbs: Sequence[str], context: click.Context, others: Mapping[str, str] | None = None
) -> None:
    """Raises UsageError with a suggestion for a name that is no verb. `others`: the verbs of other
    names.
    """
    if name in verbs or name.startswith("-"):
        return
    from difflib import get_close_matches  # for an error only

    verb_of_name = others or {}
    similar = [verb for verb in verbs if verb.startswith(name)]
    if not similar:
        similar = get_close_matches(name, [*verbs, *verb_of_name], n=3, cutoff=0.65)
    suggested = dict.fromkeys(verb_of_name.get(spelling, spelling) for spelling in similar)
    suggestion = f"did you mean {' or '.join(suggested)}? " if suggested else ""
    raise click.UsageError(
        f"no such verb: {name!r}: {suggestion}{context.command_path} --help lists the verbs"
    )


class NoReader(Exception):
    """The process that reads the output has ended."""


class Verb(click.Command):
    """A command of which a closed output is an event of its own, because click ends the process for
    it.

    Click takes the last one of two values for an option, and of two options that exclude each other
    the last one. Here both are refused: an option with one value that is given twice, as by Kafka's
    scripts, and two options of one group of `exclusive`, with their names.
    """

    def __init__(
        self, *arguments: Any, exclusive: Sequence[Sequence[str]] = (), **settings: Any
    ) -> None:
        super().__init__(*arguments, **settings)
        self._exclusive = exclusive

    def exclusive_groups(self) -> list[list[click.Option]]:
        """Groups of options of which one may be given: the flags of one parameter, and those that
        the verb names.
        """
        options = [parameter for parameter in self.params if isinstance(parameter, click.Option)]
        same: dict[str | None, list[click.Option]] = {}
        for option in options:
            if option.is_flag:
                same.setdefault(option.name, []).append(option)
        named = [
            [option for option in options if not set(group).isdisjoint(option.opts)]
            for group in self._exclusive
        ]
        return [group for group in [*same.values(), *named] if len(group) > 1]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        parameters = self.make_parser(ctx).parse_args(list(args))[2]
        for parameter in parameters:
            if (
                isinstance(parameter, click.Option)
                and not (parameter.multiple or parameter.is_flag or parameter.count)
                and parameters.count(parameter) > 1
            ):
                raise click.UsageError(
                    f"{parameter.opts[-1]}: given {parameters.count(parameter)} times, takes one value",
                    ctx,
                )
        for group in self.exclusive_groups():
            conflicting = [
                parameter.opts[-1] for parameter in dict.fromkeys(parameters) if parameter in group
            ]
            if len(conflicting) > 1:
                raise click.UsageError(
                    f"{conflicting[0]} and {conflicting[1]} exclude each other", ctx
                )
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(self.name, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise NoReader from None


# ---- options -------------------------------------------------------------------------------------


def _keep_as(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """The callback of an option that is an attribute of the invocation."""

    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value:
            setattr(context.ensure_object(Invocation), name, value)

    return keep


def _keep_directories(
    context: click.Context, parameter: click.Parameter, value: tuple[str, ...]
) -> None:
    """The callback of -d. Those before the verb and those after it would be two logs, or a part of
    a set: both are refused.
    """
    invocation = context.ensure_object(Invocation)
    if value and invocation.directories and invocation.directories != value:
        raise click.UsageError("-d is given before and after the verb: give all directories once")
    if value:
        invocation.directories = value


def _refuse(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        raise click.UsageError(f"{parameter.opts[0]}: {_REASON}")


def shared_options(function: Function) -> Function:
    """Adds the options of all verbs, which `current` returns."""
    directory = click.option(
        "-d",
        "--directory",
        multiple=True,
        expose_value=False,
        metavar="DIR",
        callback=_keep_directories,
        is_eager=True,
        help="Log directory; repeated for the directories of a set.",
    )
    json = click.option(
        "--json", is_flag=True, expose_value=False, callback=_keep_as("json"), help="Print JSON."
    )
    debug = click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_keep_as("debug"),
        is_eager=True,
        help="Show tracebacks.",
    )
    for option in (debug, json, directory):
        function = option(function)
    for name in NETWORK:
        refuse = click.option(
            name, hidden=True, expose_value=False, callback=_refuse, is_eager=True
        )
        function = refuse(function)
    return function


def verb(**settings: Any) -> Callable[[Callable[..., int | None]], click.Command]:
    """A verb: a command with the shared options, and the docstring of its function as help. The
    settings are those of `Verb`.
    """

    def decorate(function: Callable[..., int | None]) -> click.Command:
        return click.command(cls=Verb, **settings)(shared_options(function))

    return decorate

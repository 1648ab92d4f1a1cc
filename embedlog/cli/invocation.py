"""Contains `Invocation`, the options that all verbs share, and the opening of the directory that
they name.

INVOCATION-1  `-d` may be given before and after the verb; without it `EMBEDLOG_DIR` names the
    directories
INVOCATION-2  an option that names a network is refused with the reason
INVOCATION-3  options that exclude each other are refused, with the names of two of them: click
    takes the last one
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

import embedlog
from embedlog.cli import examples
from embedlog.cli.progress import loads

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


def current() -> Invocation:
    """The invocation of the verb that runs."""
    found = click.get_current_context().find_object(Invocation)
    assert found is not None, "a verb is called by the program"
    return found


def directories() -> list[str]:
    """The directories of the log. Raises UsageError if none is given."""
    given = current().directories or tuple(
        filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))
    )
    if not given:
        raise click.UsageError(f"no log directory: give -d DIRECTORY, or set {VARIABLE}")
    return list(given)


def open_log(
    *, read_only: bool = True, create: bool = False, restored: bool = False
) -> embedlog.Log:
    """The log of this invocation: one directory, or a set. It is created only if `create`.
    `restored`: as `embedlog.open`.
    """
    places = directories()
    path = places[0] if len(places) == 1 else places
    try:
        return embedlog.open(
            path, read_only=read_only, create=create, restored=restored, progress=loads()
        )
    except embedlog.StorageError as problem:
        if len(places) > 1 or problem.errno != errno.ENOENT or os.path.lexists(places[0]):
            raise
        text = "no such log directory; topics --create makes one"
        raise embedlog.StorageError(
            text, errno=errno.ENOENT, path=os.path.abspath(places[0])
        ) from problem


def write_examples(verb: str | None, formatter: click.HelpFormatter) -> None:
    """Write the examples of a verb at the end of its help; a command line is not broken, so that it
    can be copied.
    """
    lines = examples.lines(verb or "")
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
        check_known(args[0], self.list_commands(ctx), ctx)
        return super().resolve_command(ctx, args)


def check_known(
    name: str, verbs: Sequence[str], context: click.Context, others: Mapping[str, str] | None = None
) -> None:
    """Raises UsageError with a suggestion for a name that is no verb. `others`: names that belong
    to verbs.
    """
    if name in verbs or name.startswith("-"):
        return
    from difflib import get_close_matches  # for an error only

    begun = [verb for verb in verbs if verb.startswith(name)]
    near = begun or get_close_matches(name, [*verbs, *(others or {})], n=3, cutoff=0.65)
    found = list(dict.fromkeys((others or {}).get(each, each) for each in near))
    suggestion = f"did you mean {' or '.join(found)}? " if found else ""
    raise click.UsageError(
        f"no such verb: {name!r}: {suggestion}{context.command_path} --help lists the verbs"
    )


class NoReader(Exception):
    """The process that reads the output has ended."""


class Verb(click.Command):
    """A command of which a closed output is an event of its own, because click ends the process for
    it.

    An option with one value is refused if it is given twice, as by Kafka's scripts: click takes the
    last value. `exclusive` has groups of options of which one may be given (INVOCATION-3).
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
        options = [each for each in self.params if isinstance(each, click.Option)]
        same: dict[str | None, list[click.Option]] = {}
        for each in options:
            if each.is_flag:
                same.setdefault(each.name, []).append(each)
        named = [
            [each for each in options if not set(group).isdisjoint(each.opts)]
            for group in self._exclusive
        ]
        return [group for group in [*same.values(), *named] if len(group) > 1]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = self.make_parser(ctx).parse_args(list(args))[2]
        for each in given:
            if (
                isinstance(each, click.Option)
                and not (each.multiple or each.is_flag or each.count)
                and given.count(each) > 1
            ):
                raise click.UsageError(
                    f"{each.opts[-1]}: given {given.count(each)} times, takes one value", ctx
                )
        for group in self.exclusive_groups():
            found = [each.opts[-1] for each in dict.fromkeys(given) if each in group]
            if len(found) > 1:
                raise click.UsageError(f"{found[0]} and {found[1]} exclude each other", ctx)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(self.name, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise NoReader from None


# ---- options -------------------------------------------------------------------------------------


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value:
            setattr(context.ensure_object(Invocation), name, value)

    return callback


def _refuse(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        raise click.UsageError(f"{parameter.opts[0]}: {_REASON}")


def shared(function: Function) -> Function:
    """Adds the options of all verbs, which `current` returns."""
    places = click.option(
        "-d",
        "--directory",
        multiple=True,
        expose_value=False,
        metavar="DIR",
        callback=_keep("directories"),
        is_eager=True,
        help="Log directory; repeated for the directories of a set.",
    )
    json = click.option(
        "--json", is_flag=True, expose_value=False, callback=_keep("json"), help="Print JSON."
    )
    debug = click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_keep("debug"),
        is_eager=True,
        help="Show tracebacks.",
    )
    for each in (debug, json, places):
        function = each(function)
    for name in NETWORK:
        function = click.option(
            name, hidden=True, expose_value=False, callback=_refuse, is_eager=True
        )(function)
    return function


def verb(**settings: Any) -> Callable[[Callable[..., int | None]], click.Command]:
    """A verb: a command with the shared options, and the docstring of its function as help. The
    settings are those of `Verb`.
    """

    def decorated(function: Callable[..., int | None]) -> click.Command:
        return click.command(cls=Verb, **settings)(shared(function))

    return decorated

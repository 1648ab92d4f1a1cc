"""Contains the dialogs: a form, a confirmation, and the help."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from embedlog import EmbedlogError
from embedlog.descriptions.display.visible_text import visible
from embedlog.tools.console.model.filters import FilterError
from embedlog.tools.console.model.text import line_of
from embedlog.tools.console.widgets.tables import plain_text


class FormField(NamedTuple):
    """A line of a form."""

    name: str
    label: str
    value: str = ""
    hint: str = ""


class Dialog(ModalScreen[Any]):
    """A screen above the others that Escape leaves."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "leave")]

    def action_leave(self) -> None:
        self.dismiss(None)


class Form(Dialog):
    """Some lines of text; the result is what `check` makes of them. A text without a meaning keeps
    the form open, with the reason.
    """

    def __init__(
        self, title: str, fields: Sequence[FormField], check: Callable[[Mapping[str, str]], Any]
    ) -> None:
        super().__init__()
        self._title = title
        self._fields = fields
        self._check = check

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(plain_text(self._title), classes="title")
            for field in self._fields:
                yield Static(plain_text(f"{field.label}  {field.hint}".rstrip()), classes="label")
                yield Input(field.value, id=field.name, select_on_focus=False, compact=True)
            yield Static("", id="problem", markup=False)
            yield Static(
                plain_text("Enter: accept   Tab: next line   Escape: leave"), classes="keys"
            )

    def on_input_submitted(self) -> None:
        values = {
            field.name: self.query_one(f"#{field.name}", Input).value for field in self._fields
        }
        try:
            result = self._check(values)
        except (FilterError, EmbedlogError) as problem:
            self.query_one("#problem", Static).update(
                plain_text(line_of(problem), style="bold red")
            )
            return
        self.dismiss(result)


class Confirmation(Dialog):
    """Asks for the whole name of what is changed; the result is whether it was typed."""

    def __init__(self, question: str, name: str) -> None:
        super().__init__()
        self._question = question
        self._name = name

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            for part in self._question.splitlines():
                yield Static(plain_text(part))
            yield Static(
                plain_text(f"Type {visible(self._name)} to confirm; Escape leaves."),
                classes="label",
            )
            yield Input(id="name", select_on_focus=False, compact=True)
            yield Static("", id="problem", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.value in (self._name, visible(self._name)):
            self.dismiss(True)
        else:
            self.query_one("#problem", Static).update(
                plain_text(f"not {self._name}: nothing was changed", style="bold red")
            )


class Help(Dialog):
    """The keys of all tabs."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark,q", "leave", "leave")]

    def __init__(self, rows: Sequence[tuple[str, str, str]]) -> None:
        super().__init__()
        self._rows = rows

    def compose(self) -> ComposeResult:
        text = Text()
        for owner, key, meaning in self._rows:
            text.append(f"{owner:<14}{key:<10}{meaning}\n")
        with VerticalScroll(classes="dialog"):
            yield Static("Keys; Escape leaves", classes="title", markup=False)
            yield Static(text)

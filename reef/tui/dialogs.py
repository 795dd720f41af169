"""Questions and pages that stand over the tabs: a typed confirmation, yes or no, a form, a page to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from reef.tui.painted import Lines
from reef.tui.text import Line, plain


def said(text: str) -> Content:
    """A text that is never markup."""
    return Content(plain(text))


T = TypeVar("T")


class Dialog(ModalScreen[T]):
    """What stands over the tabs for a while."""

    def on_screen_suspend(self) -> None:
        """Give back what was painted: Textual remembers 1,024 widgets that are gone, each with its lines."""
        for widget in self.walk_children(with_self=True):
            widget.refresh()


class TypedConfirm(Dialog[bool]):
    """Yes only after a name was typed. Cancel has the keys at first; letters go to the name wherever the keys are."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(False)", "cancel", id="dialog.cancel"),
        Binding("left,right,tab,shift+tab", "other", "other button", show=False, id="dialog.other"),
    ]

    def __init__(self, title: str, lines: Sequence[str], word: str, button: str) -> None:
        super().__init__()
        self._title, self._lines, self._word, self._button = title, lines, word, button
        self._typed = ""

    def compose(self) -> ComposeResult:
        """Title, what will happen, the name, two buttons."""
        with Vertical(classes="dialog") as box:
            box.border_title = said(self._title)
            for line in self._lines:
                yield Static(said(line))
            yield Static(said(f"Type {self._word} to confirm: _"), id="typed")
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                yield Button(said(self._button), id="go", variant="error", disabled=True, compact=True)

    def on_mount(self) -> None:
        """Enter alone does nothing."""
        self.query_one("#cancel").focus()

    def on_key(self, event: events.Key) -> None:
        """Take letters for the name."""
        if event.key == "backspace":
            self._typed = self._typed[:-1]
        elif event.character is not None and event.is_printable and event.key not in ("space", "enter"):
            self._typed += event.character
        else:
            return
        event.stop()
        self.query_one("#typed", Static).update(said(f"Type {self._word} to confirm: {self._typed[-40:]}_"))
        go = self.query_one("#go", Button)
        go.disabled = self._typed != self._word
        (self.query_one("#cancel") if go.disabled else go).focus()

    def action_other(self) -> None:
        """The other button, when it can be pressed."""
        self.focus_next()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """The answer."""
        self.dismiss(event.button.id == "go")


class YesNo(Dialog[bool]):
    """``y`` or ``n``, below what is to be decided; Enter decides nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "yes", id="dialog.yes"),
        Binding("n,escape", "dismiss(False)", "no", id="dialog.no"),
    ]

    def __init__(self, title: str, lines: Sequence[Line]) -> None:
        super().__init__()
        self._title, self._lines = title, lines

    def compose(self) -> ComposeResult:
        """What is decided on, and the two keys."""
        with Vertical(classes="dialog page"):
            page = Lines(classes="body")
            yield page
            yield Static(said("y yes    n no    arrows scroll"), classes="keys")

    def on_mount(self) -> None:
        """Show it."""
        self.query_one(Vertical).border_title = said(self._title)
        body = self.query_one(Lines)
        body.show(self._lines)
        body.focus()


class Page(Dialog[None]):
    """Something to read."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,at", "dismiss", "close", id="page.close"),
        Binding("j", "scroll(1)", "down", show=False, id="page.down"),
        Binding("k", "scroll(-1)", "up", show=False, id="page.up"),
    ]

    def __init__(self, title: str, lines: Sequence[Line], *, folds: bool = False) -> None:
        super().__init__()
        self._title, self._lines, self._folds = title, lines, folds

    def compose(self) -> ComposeResult:
        """A scrolling text."""
        with Vertical(classes="dialog page"):
            yield Lines(folds=self._folds, classes="body")
            yield Static(said("esc closes    j k scroll"), classes="keys")

    def on_mount(self) -> None:
        """Show it."""
        self.query_one(Vertical).border_title = said(self._title)
        body = self.query_one(Lines)
        body.show(self._lines)
        body.focus()

    def action_scroll(self, by: int) -> None:
        """One line."""
        self.query_one(Lines).scroll_relative(y=by, animate=False)


class Form(Dialog[dict[str, str] | None]):
    """A few lines to fill in: name, question, what stands there already."""

    AUTO_FOCUS: ClassVar[str] = "Input"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "cancel", id="form.cancel"),
        Binding("down", "app.focus_next", "next", show=False, id="form.next"),
        Binding("up", "app.focus_previous", "previous", show=False, id="form.previous"),
        Binding("tab", "app.focus_next", "next", show=False, id="form.next_field"),
        Binding("shift+tab", "app.focus_previous", "previous", show=False, id="form.previous_field"),
    ]

    def __init__(self, title: str, fields: Sequence[tuple[str, str, str]], button: str) -> None:
        super().__init__()
        self._title, self._fields, self._button = title, fields, button

    def compose(self) -> ComposeResult:
        """A line for each field, two buttons."""
        with Vertical(classes="dialog") as box:
            box.border_title = said(self._title)
            for name, question, value in self._fields:
                yield Static(said(question), classes="question")
                yield Input(value, id=name, compact=True)
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="form-cancel", compact=True)
                yield Button(said(self._button), id="form-go", variant="primary", compact=True)

    def on_input_submitted(self) -> None:
        """Enter in a field goes to the next one, from the last one to the button."""
        self.focus_next()
        if isinstance(self.focused, Button) and self.focused.id == "form-cancel":
            self.query_one("#form-go").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """What was filled in, None when it was cancelled."""
        values = {name: self.query_one(f"#{name}", Input).value.strip() for name, *_ in self._fields}
        self.dismiss(values if event.button.id == "form-go" else None)

"""What every page has to be, whatever is shown: well-formed, labelled, and without anything that a policy would refuse."""

from __future__ import annotations

from html.parser import HTMLParser
from unicodedata import category

HIDING = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Categories of characters that hide, or reorder what stands beside them."""
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
FILLED_IN = {"select", "textarea", "input"}
READ_OUT = ("alt", "aria-label", "placeholder", "title")
LOADS = ("href", "src", "action", "formaction", "data-stream")


class Markup(HTMLParser):
    """Reads a page; `mistakes` says what is wrong with it."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.mistakes: list[str] = []
        self.ids: list[str] = []
        self.texts: list[str] = []
        """Of what a reader sees, tags apart."""
        self._open: list[str] = []
        self._labelled: set[str] = set()
        self._fields: list[tuple[str, bool]] = []
        self._named: list[list[str]] = []
        self._headings: list[int] = []
        if not page.startswith("<!doctype html>"):
            self.mistakes.append("no doctype")
        self.feed(page)
        self.close()
        self._finish()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if len(given) != len(attrs):
            self.mistakes.append(f"<{tag}> has an attribute twice")
        for name in given:
            if name.startswith("on") or name == "style":
                self.mistakes.append(f"<{tag}> has {name}")
        for name in LOADS:
            if name in given and (given[name].lower().startswith(("http:", "https:", "//", "javascript:", "data:"))):
                self.mistakes.append(f"<{tag}> loads {given[name]!r}")
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "label" and "for" in given:
            self._labelled.add(given["for"])
        if tag in FILLED_IN and given.get("type") != "hidden":
            self._fields.append((given.get("id", ""), "label" in self._open or "aria-label" in given))
        self.texts += [given[name] for name in READ_OUT if name in given]
        if tag == "img" and "alt" not in given:
            self.mistakes.append("an image without a text")
        if tag in ("a", "button", "summary"):
            self._named.append([given.get("aria-label", "")])
        if len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            self._headings.append(int(tag[1]))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1] != tag:
            self.mistakes.append(f"</{tag}> ends {self._open[-1:]}")
            return
        self._open.pop()
        if tag in ("a", "button", "summary") and not "".join(self._named.pop()).strip():
            self.mistakes.append(f"<{tag}> says nothing")

    def handle_data(self, data: str) -> None:
        if self._open[-1:] in (["script"], ["style"]):
            self.mistakes.append("a script or a style within the page")
        self.texts.append(data)
        for name in self._named:
            name.append(data)

    def _finish(self) -> None:
        if odd := {char for char in set(self.text) if category(char) in HIDING} - set("\n\t\u200c\u200d"):
            self.mistakes.append(f"characters that hide: {sorted(map(ord, odd))}")
        if self._open:
            self.mistakes.append(f"not ended: {self._open}")
        self.mistakes += [f"id {one!r} twice" for one in set(self.ids) if self.ids.count(one) > 1]
        self.mistakes += [
            f"field {one!r} without a label" for one, is_named in self._fields if not is_named and one not in self._labelled
        ]
        if self._headings.count(1) != 1:
            self.mistakes.append(f"{self._headings.count(1)} headings of the page")
        for before, after in zip(self._headings, self._headings[1:], strict=False):
            if after > before + 1:
                self.mistakes.append(f"h{after} after h{before}")

    @property
    def text(self) -> str:
        return "".join(self.texts)


def text_of(page: str) -> str:
    """What a reader of the page sees. Fails for a page with a mistake."""
    read = Markup(page)
    assert read.mistakes == [], read.mistakes
    return read.text

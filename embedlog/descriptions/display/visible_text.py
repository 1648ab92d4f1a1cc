"""Makes text harmless for terminals: the one function through which the command line and the
console show text of a log.

Keys, values, names of groups and of files are chosen by others. An escape sequence among them could
change the title or the colours of a terminal, overwrite earlier lines, or paste commands.
"""

from __future__ import annotations

from unicodedata import category

_DELETE = 0x7F


def visible(text: str, keep: str = "") -> str:
    """The text with a sign or a number in the place of each character that controls a terminal,
    except for those of `keep`.

    Control characters are the signs of Unicode (`␛`), format characters and others that are not
    printable their numbers (`<U+202E>`). Spaces of all widths stay.
    """
    if text.isprintable():
        return text
    return "".join(
        character if _is_harmless(character, keep) else _sign_of(character) for character in text
    )


def _is_harmless(character: str, keep: str) -> bool:
    return character.isprintable() or character in keep or category(character) == "Zs"


def _sign_of(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)  # the signs of Unicode for control characters
    return "\u2421" if code == _DELETE else f"<U+{code:04X}>"

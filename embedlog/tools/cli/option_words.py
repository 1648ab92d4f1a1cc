"""Translates the calls that an error of the library names into options of the command line.

A remedy that the command line does not have is left out.
"""

from __future__ import annotations

import re
from typing import Final

OPTIONS: Final = {
    "exist_ok=True accepts that": "--if-not-exists accepts that",
    "create_topic() creates it": "topics --create creates it, and ls lists all",
    "log.groups() has the names of all": "groups --list has the names of all",
    "The group id does not exist.": "no such group; groups --list has the names of all",
    ", and read_only=True or create=False forbids creating it": "",
    " (read_only=True needs no write permission)": "",
    "open all of its directories, or this one with read_only=True or alone=True": "give all of its directories by -d",
    "elect(topic, partition, unclean=True, node=…)": "elect --election-type unclean --node",
    "with alter_topic()": "with configs --alter",
    "which alter_topic() can raise": "which configs --alter can raise",
}


# settings have dots on a command line
_SUGGESTED: Final = re.compile(r"(is not an option of a \w+; did you mean )([a-z_]+\?)")


def text_in_options(error: Exception) -> str:
    """The text of an error in the words of the command line."""
    text = str(error)
    for call, option in OPTIONS.items():
        text = text.replace(call, option)
    return _SUGGESTED.sub(lambda match: match[1] + match[2].replace("_", "."), text)

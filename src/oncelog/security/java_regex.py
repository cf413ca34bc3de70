"""Regular expressions of Java for Python: the same text, with the same meaning or none at all.

Most of the syntax is the same. What is not is translated (ASCII classes, names of groups, `\\p{Alpha}`, `\\Q...\\E`,
the ends of lines that `.` and `$` know), and what could mean something else in Python is refused by name.
"""

from __future__ import annotations

import re
from typing import Final

_LINE_ENDS: Final = r"\n\r\x85\u2028\u2029"
_LAST_END: Final = rf"(?=(?:\r\n|[{_LINE_ENDS}])?\Z)"
_CLASSES: Final = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "ASCII": r"\x00-\x7f",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Punct": r"!-/:-@\[-`{-~",
    "Graph": "!-~",
    "Print": " -~",
    "Blank": r" \t",
    "Cntrl": r"\x00-\x1f\x7f",
    "XDigit": "0-9a-fA-F",
    "Space": r" \t-\r",
}
_PART: Final = re.compile(
    r"""\\Q(?P<quoted>.*?)(?:\\E|\Z)
      | \\p\{(?:Is)?(?P<class_name>\w+)\}
      | \\P\{(?:Is)?(?P<other_class>\w+)\}
      | \\k<(?P<back>\w+)>
      | \\x\{(?P<code>[0-9a-fA-F]+)\}
      | (?P<end>\\[zZ])
      | (?P<odd>\\(?:[0cehHvVRGXN].?|$))
      | (?P<escape>\\.)
      | \(\?<(?P<name>[a-zA-Z][a-zA-Z0-9]*)>
      | (?P<group>\(\?(?:[:=!>]|<[=!]|[ims]+[:)]|-[ims]+:|[ims]+-[ims]+:))
      | (?P<odd_group>\(\?.?)
      | (?P<times>\{[0-9]+(?:,[0-9]*)?\})
      | (?P<sign>.)""",
    re.DOTALL | re.VERBOSE,
)


def compile_java(pattern: str) -> re.Pattern[str]:
    """Raises ValueError for what is not understood."""
    translated, is_class, is_class_start, sees_all = [], False, False, False
    for part in _PART.finditer(pattern):
        kind, text = part.lastgroup or "", part[0]
        was_class_start, is_class_start = is_class_start, False
        if kind in ("odd", "odd_group"):
            raise ValueError(f"{text} is not understood")
        if kind == "group" and not is_class:
            sees_all = sees_all or (text[2] not in ":=!><" and "s" in text)
        if kind == "quoted":
            text = re.escape(part["quoted"])
        elif kind in ("class_name", "other_class"):
            text = _class(part[kind], is_class, is_other=kind == "other_class")
        elif kind == "back":
            text = f"(?P={part['back']})"
        elif kind == "code":
            text = re.escape(chr(int(part["code"], 16)))
        elif kind == "end":
            text = r"\Z" if text == r"\z" else _LAST_END
        elif kind == "name" and not is_class:
            text = f"(?P<{part['name']}>"
        elif kind == "sign" and is_class:
            if text == "[" or (text == "]" and was_class_start) or pattern.startswith("&&", part.start()):
                raise ValueError(f"{text} within a class is not understood")
            is_class = text != "]"
            is_class_start = was_class_start and text == "^"
        elif text == "[":
            is_class = is_class_start = True
        elif text in "{}" and kind == "sign":
            raise ValueError(f"{text} that is no count needs a backslash")
        elif text == "." and not sees_all:
            text = f"[^{_LINE_ENDS}]"
        elif text == "$":
            text = _LAST_END
        translated.append(text)
    try:
        return re.compile("".join(translated), re.ASCII)
    except (re.error, OverflowError) as error:
        raise ValueError(str(error)) from None


def _class(name: str, is_class: bool, *, is_other: bool) -> str:
    if name not in _CLASSES or (is_other and is_class):
        raise ValueError(f"the class {name} is not understood")
    if is_class:
        return _CLASSES[name]
    return f"[{'^' if is_other else ''}{_CLASSES[name]}]"

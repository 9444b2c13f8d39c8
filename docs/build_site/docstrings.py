"""Docstrings name an argument and, two spaces or more behind it, say what it is; on a page that becomes a list."""

import re

import griffe

ARGUMENT = re.compile(r"^([A-Za-z_][\w, ]*?)(?: {2,})(\S.*)$")


class Arguments(griffe.Extension):
    def on_object(self, *, obj, **_):
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)


def listed(text: str) -> str:
    lines, inside = [], False
    for line in text.splitlines():
        found = ARGUMENT.match(line)
        if found:
            lines += [] if inside else [""]
            lines.append(f"- `{found[1]}`: {found[2]}")
            inside = True
        elif inside and line.startswith(" "):
            lines.append(f"  {line.strip()}")
        else:
            inside = False
            lines.append(line)
    return "\n".join(lines)

"""What the documentation's site has that its pages do not: the list of all commands, and links that lead out of it."""

import re

import click
import typer
from mkdocs.structure.files import File

from fedhybrid.cli import app
from fedhybrid.status import Status

OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")


def on_files(files, config):
    files.append(File.generated(config, "commands.md", content=commands()))
    return files


def on_page_markdown(markdown, **_):
    """A link to a file of the repository becomes the file's name, since a site knows no repository."""
    return OUTSIDE.sub(lambda found: f"{found[1]} (`{found[2]}`)" if found[1].strip("`") != found[2] else f"`{found[2]}`", markdown)


def commands() -> str:
    """A page from what `--help` says, so that the two cannot differ."""
    pages = [f"# Commands\n\nWhat `--help` says of each; first, what they end with.\n\n{_exit_statuses()}"]
    pages += [_section(name, command) for name, command in _leaves("fedhybrid", typer.main.get_command(app))]
    return "\n".join(pages)


def _exit_statuses() -> str:
    """One row per number, from the library's own table."""
    said: dict[int, list[str]] = {1: ["an unexpected failure; or a check, such as `verify`, that found a difference"]}
    for status in Status:
        said.setdefault(status.exit_status, []).append(f"`{status}`: {status.sentence}")
    rows = [f"| {number} | {'; '.join(said[number])} |" for number in sorted(said)]
    return "\n".join(["| exit status | |", "|---|---|", *rows, ""])


def _leaves(name: str, command: click.Command):
    if isinstance(command, click.Group):
        for part in command.commands:
            yield from _leaves(f"{name} {part}", command.commands[part])
    else:
        yield name, command


def _section(name: str, command: click.Command) -> str:
    text, _, example = (command.help or "").partition("Example:")
    parts = [f"## {name}\n", _paragraphs(text)]
    if example:
        parts.append(f"```text\n{_paragraphs(example).strip()}\n```\n")
    rows = [_row(parameter) for parameter in command.params if parameter.name != "help"]
    if rows:
        parts.append("| | |\n|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.replace("\b", "").split("\n\n")) + "\n"


def _row(parameter: click.Parameter) -> str:
    flags = parameter.opts + parameter.secondary_opts if isinstance(parameter, click.Option) else [parameter.make_metavar(_CONTEXT)]
    default = parameter.default
    shown = "" if default in (None, False, ...) or callable(default) or parameter.required else f" Default: `{default}`."
    said = (getattr(parameter, "help", None) or "").replace("|", "\\|")
    return f"| `{' '.join(flags)}` | {said}{shown} |"


_CONTEXT = click.Context(click.Command("fedhybrid"))

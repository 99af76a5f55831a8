"""A rough reading of C and C++: enough to tell where functions begin and end, no more.

It knows comments, literals, preprocessor lines and braces. A `{` opens a function body when the
declaration before it has a parameter list, is no type or namespace, and is no initialiser.
"""
import re
from typing import Iterator, NamedTuple


class Function(NamedTuple):
    name: str
    first_line: int
    last_line: int


_TOKENS = re.compile(
    r"""(?P<blank>//[^\n]*|/\*.*?\*/
        |R"(?P<delimiter>[^(\s]*)\(.*?\)(?P=delimiter)"
        |"(?:\\.|[^"\\\n])*"
        |(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'
        |^[ \t]*\#(?:\\\n|[^\n])*)""", re.DOTALL | re.MULTILINE | re.VERBOSE)
_TYPE = re.compile(r"\b(class|struct|union|enum|namespace|extern)\b")
_NAME = re.compile(r"([~\w:]+|operator\s*\S+)\s*\($")


def without_comments_and_literals(text: str) -> str:
    """The text with comments, literals and preprocessor lines blanked, line breaks kept."""
    def blank(match: re.Match) -> str:
        found = match.group()
        # a literal stays something, so that `f("x")` still reads as a call
        inner = "" if found.lstrip().startswith(("//", "/*", "#")) else "0"
        return inner + re.sub(r"[^\n]", "", found)
    return _TOKENS.sub(blank, text)


def _without_brackets(declaration: str) -> str:
    """The declaration with everything inside <>, () and [] taken out, innermost first."""
    for pattern in (r"\([^()]*\)", r"\[[^\[\]]*\]", r"<[^<>]*>"):
        before = None
        while before != declaration:
            before = declaration
            declaration = re.sub(pattern, lambda m: m.group()[0] + m.group()[-1]
                                 if len(m.group()) == 2 else " ", declaration)
    return declaration


def _function_name(declaration: str) -> str:
    """The name declared, or "" if the declaration before a brace is no function's."""
    if "(" not in declaration:
        return ""
    outside = _without_brackets(declaration)
    if _TYPE.search(outside) or re.search(r"(?<!operator)(?<![=!<>])=(?!=)", outside):
        return ""
    match = _NAME.search(declaration[:declaration.index("(") + 1])
    return match.group(1) if match else "(unnamed)"


def functions(text: str) -> Iterator[Function]:
    """Every outermost function body of the text, with the lines from its declaration to its end."""
    depth_inside = 0          # braces open since the function's own one; 0 outside functions
    name, first_line = "", 0
    declaration, declared_at = "", 0
    line = 1
    for char in without_comments_and_literals(text):
        if char == "\n":
            line += 1
        if depth_inside:
            depth_inside += {"{": 1, "}": -1}.get(char, 0)
            if depth_inside == 0:
                yield Function(name, first_line, line)
                declaration = ""
        elif char == "{":
            name = _function_name(declaration)
            if name:
                depth_inside, first_line = 1, declared_at
            declaration = ""
        elif char in ";}":
            declaration = ""
        else:
            if not declaration.strip():
                declaration, declared_at = "", line
            declaration += char

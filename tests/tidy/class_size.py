"""How many member functions each class of src/ has.

All that it declares are counted, whoever may call them: virtual ones, templates, overloads. Not
counted are constructors, destructors, operators, and what is deleted or defaulted. A class within
another one counts for itself.
"""
import re
from typing import Iterator, NamedTuple, Optional

import cpp_shape

MOST = 33

_ATTRIBUTES = re.compile(r"\[\[.*?\]\]", re.DOTALL)
_TEMPLATE_ARGUMENTS = re.compile(r"<[^<>]*>")
_PARENTHESES = re.compile(r"\([^()]*\)")
_SPECIFIER = re.compile(r"\b(?:alignas|decltype|explicit|requires|noexcept)\s*(?=\()")
_ACCESS = re.compile(r"\b(?:public|private|protected)\s*:(?!:)")
_CLASS = re.compile(r"(?:class|struct|union)\s+([\w:]*\w)(?:\s+final)?\s*(?:$|:(?!:))")
_SCOPE = re.compile(r"(?:inline\s+)?namespace\b|extern\s*$")
_NO_FUNCTION = re.compile(r"(?:using|friend|typedef|static_assert)\b|,")
_DECLARED = re.compile(r"(~?\w+)\s*\((?!\s*\*)")
_SPECIAL = re.compile(r"=\s*(?:delete|default)\s*$")


class Class(NamedTuple):
    name: str
    line: int
    functions: int


def _bare(declaration: str) -> str:
    """The declaration without labels, attributes, template arguments and `alignas(...)`."""
    text = _ATTRIBUTES.sub(" ", declaration).replace("->", " ")
    text = _ACCESS.sub(" ", text)
    before = None
    while before != text:
        before = text
        text = _TEMPLATE_ARGUMENTS.sub(" ", text)
    while (match := _SPECIFIER.search(text)) is not None:
        inside = text[match.end():]
        while (closed := _PARENTHESES.match(inside)) is None and _PARENTHESES.search(inside):
            inside = _PARENTHESES.sub(" ", inside, count=1)
        text = text[:match.start()] + " " + (inside[closed.end():] if closed else "")
    return re.sub(r"^\s*template\b", "", text).strip()


def _is_member_function(declaration: str, of: str) -> bool:
    text = _bare(declaration)
    if "operator" in text or _NO_FUNCTION.match(text) or _SPECIAL.search(text):
        return False
    match = _DECLARED.search(text)
    if match is None or "=" in text[:match.start()]:
        return False
    name = match.group(1)
    is_macro = re.fullmatch(r"[A-Z_0-9]+", name) is not None
    return not (is_macro or name.startswith("~") or name == of.split("::")[-1])


class _Scope:
    def __init__(self, name: Optional[str], line: int, is_read: bool) -> None:
        self.name, self.line, self.is_read = name, line, is_read
        self.functions = 0


def _opened(declaration: str, line: int, outer: _Scope) -> _Scope:
    """What the brace after that declaration opens: a class, a namespace, or what is not read."""
    text = _bare(declaration)
    head = _CLASS.search(text) if "(" not in text else None
    if outer.is_read and head is not None:
        return _Scope(head.group(1), line, True)
    return _Scope(None, line, outer.is_read and _SCOPE.match(text) is not None)


def classes(text: str) -> Iterator[Class]:
    """Every class with a body in the text, but for those within functions."""
    scopes = [_Scope(None, 1, True)]
    declaration, line = "", 1
    for char in cpp_shape.without_comments_and_literals(text):
        if char == "\n":
            line += 1
        scope = scopes[-1]
        if char not in "{};":
            declaration += char
            continue
        is_complete = char == ";" or (char == "{" and "(" in declaration)
        if scope.name is not None and is_complete and _is_member_function(declaration, scope.name):
            scope.functions += 1
        if char == "{":
            scopes.append(_opened(declaration, line, scope))
        elif char == "}" and len(scopes) > 1:
            scopes.pop()
            if scope.name is not None:
                yield Class(scope.name, scope.line, scope.functions)
        declaration = ""


def with_many(text: str) -> Iterator[Class]:
    return (each for each in classes(text) if each.functions > MOST)

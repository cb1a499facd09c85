"""Restricts the embedded engine's SQL to its own tables: no access to files, and no outgoing connections.

There are two layers. The engine's grants exclude its sources (files, URLs, S3, other databases), dictionaries, users
and system commands. Whatever grants do not cover (`file(...)` as a scalar, `INTO OUTFILE`, scripts, Python variables,
settings that hold expressions) is searched for in the statement as the engine's own formatter writes it: without
comments, names spelled uniformly, and all strings in one form.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

GRANTS = (
    "GRANT SHOW, SELECT, INSERT, ALTER, CREATE DATABASE, CREATE TABLE, CREATE VIEW, CREATE TEMPORARY TABLE, "
    "DROP, TRUNCATE, OPTIMIZE, CHECK ON *.*"
)
_SETTINGS = {
    # INSERT values are read only as values; expressions there would run without being checked.
    "input_format_values_interpret_expressions": "0",
    "input_format_values_deduce_templates_of_expressions": "0",
}
_FIXED_SETTINGS = (
    *_SETTINGS,
    # Another dialect would be parsed by another parser than the one that formats the statement.
    "dialect",
    # Formats that read a file or contact a server.
    *("format_schema", "format_schema_source", "format_template_row", "format_template_resultset"),
    *("format_avro_schema_registry_url", "input_format_record_errors_file_path"),
    # Disks at other paths or on a web server.
    *("merge_tree_disk", "merge_tree_storage_policy"),
)
_STATEMENTS = {
    *("SELECT", "WITH", "INSERT", "CREATE", "ALTER", "DROP", "TRUNCATE", "OPTIMIZE", "RENAME", "DELETE", "UPDATE"),
    *("SHOW", "DESCRIBE", "EXPLAIN", "EXISTS", "CHECK", "SET", "USE"),
}
_TABLE_FUNCTIONS = {
    *("numbers", "numbers_mt", "zeros", "zeros_mt", "generate_series", "generateSeries", "generateRandom", "primes"),
    *("values", "view", "viewIfPermitted", "null", "merge"),
}
_TEXT_SETTINGS = {"log_comment", "insert_deduplication_token", "default_format", "bool_true_representation"}
"""The only text settings that may be changed; others hold paths, addresses and expressions."""
_ENGINES = re.compile(r"(?:Aggregating|Collapsing|Replacing|Summing|VersionedCollapsing)?MergeTree|Memory|Null|Atomic")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'", re.DOTALL)
_QUOTED_NAME = re.compile(r"`(?:[^`\\]|\\.)*`", re.DOTALL)
_PLAIN_NAME = re.compile(r"`(\w+)`")
_CALL = re.compile(r"\b(\w+) ?\(")
_ENGINE = re.compile(r"\bENGINE = (\w+)")
_SETTING = re.compile(r"\b(\w+) = ")
_FORBIDDEN_WORDS = re.compile(r"\b(OUTFILE|INFILE|PARALLEL WITH|file|ai[A-Z]\w*|AI[A-Z]\w*)\b", re.IGNORECASE)


class Forbidden(Exception):
    """A statement uses something that is not allowed here; the message names it."""


def write_config(path: Path) -> None:
    """Write the engine's start configuration: one user with few rights.

    The user has no password, since requests reach the engine only after the HTTP server has checked theirs.
    """
    settings = "".join(f"<{name}>{value}</{name}>" for name, value in _SETTINGS.items())
    fixed = "".join(f"<{name}><const/></{name}>" for name in _FIXED_SETTINGS)
    path.write_text(
        f"<clickhouse><users_config>{escape(str(path))}</users_config>"
        f"<profiles><default>{settings}<constraints>{fixed}</constraints></default></profiles>"
        "<users><default><password></password><networks><ip>127.0.0.1</ip><ip>::1</ip></networks>"
        f"<profile>default</profile><quota>default</quota><grants><query>{GRANTS}</query></grants></default></users>"
        "<quotas><default></default></quotas></clickhouse>\n",
        encoding="utf-8",
    )


@dataclass(frozen=True)
class Rules:
    """functions: lower-case names of forbidden table functions. settings: names that may not be changed."""

    functions: frozenset[str]
    settings: frozenset[str]

    @classmethod
    def of(cls, *, table_functions: Iterable[str], text_settings: Iterable[str]) -> "Rules":
        """Forbid everything that this engine has except our allow-lists, and thus whatever a new version adds."""
        return cls(
            frozenset(name.lower() for name in set(table_functions) - _TABLE_FUNCTIONS),
            frozenset(text_settings) - _TEXT_SETTINGS,
        )

    def check(self, formatted: str, settings: Mapping[str, str]) -> None:
        """formatted: a statement as returned by `formatQuery`; settings: the request's. Raises Forbidden."""
        text = _bare(formatted)
        kind = text.split(maxsplit=1)[0].strip("(")
        if kind and kind not in _STATEMENTS:
            raise Forbidden(f"{kind} statements")
        word = _FORBIDDEN_WORDS.search(text)
        if word:
            raise Forbidden(word[0])
        for name in _CALL.findall(text):
            if name.lower() in self.functions:
                raise Forbidden(f"{name}()")
        for engine in _ENGINE.findall(text):
            if not _ENGINES.fullmatch(engine):
                raise Forbidden(f"ENGINE = {engine}")
        changed = text if kind == "SET" else text.partition("SETTINGS")[2]
        for name in [*_SETTING.findall(changed), *settings]:
            if name in self.settings:
                raise Forbidden(f"the setting {name}")


def _bare(formatted: str) -> str:
    """The statement with all strings emptied and plain names unquoted. Other quoted names are emptied too, since no
    function has such a name."""
    text = _STRING.sub("''", formatted)
    return _QUOTED_NAME.sub("``", _PLAIN_NAME.sub(r"\1", text))

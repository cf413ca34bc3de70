"""That the table of `tests/unit/security/test_java_texts.py` is what Kafka does."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

from peers.kafka.jars import java_command

TABLE = Path(__file__).parents[1] / "data" / "java_security_texts.json"
PROGRAM = Path(__file__).parents[2] / "peers" / "java" / "SecurityTexts.java"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode() + "."


def answer_of(row: list[Any]) -> str:
    told = row[-1]
    if told is None:
        return "-"
    if isinstance(told, str):
        return encoded(told)
    return " ".join([".", *(encoded(text) for item in sorted(told.items()) for text in item)])


def test_kafka_reads_settings_as_the_table_says(java: None) -> None:
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    rows = [(kind, row) for kind in ("mapping", "jaas") for row in table[kind]]
    lines = [" ".join([kind, *map(encoded, row[:-1])]) for kind, row in rows]
    ran = subprocess.run(
        java_command(PROGRAM), input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=300, check=True
    )
    told = ran.stdout.splitlines()
    assert len(told) == len(rows)
    wrong = [row for (_, row), answer in zip(rows, told, strict=True) if answer != answer_of(row)]
    assert wrong == []

"""The Spark part of docs/testing.md runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from oncelog.testing import BrokerProcess

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()


def test_the_pipeline_of_the_page_runs(spark: Any, oncelog_broker: BrokerProcess, tmp_path: Path) -> None:
    (block,) = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"Producer": Producer}
    exec(compile(block, "docs/testing.md, Spark", "exec"), names)
    names["test_a_pipeline"](oncelog_broker, tmp_path)

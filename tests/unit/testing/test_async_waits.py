"""Waits for coroutines, under pytest-asyncio as users have them."""

from __future__ import annotations

import asyncio

import pytest

from oncelog.client import AsyncProducer
from oncelog.testing import BrokerProcess, TimedOut

pytestmark = pytest.mark.asyncio


async def test_others_run_while_a_coroutine_waits(oncelog_broker: BrokerProcess, oncelog_topic: str) -> None:
    """The record that is waited for is written by the same event loop."""

    async def write() -> None:
        async with AsyncProducer({"bootstrap.servers": oncelog_broker.bootstrap_servers}) as producer:
            await (await producer.send(oncelog_topic, "x"))

    waiting = asyncio.create_task(oncelog_broker.wait_async.records(oncelog_topic, 1))
    await asyncio.sleep(0)
    await write()
    assert await waiting == 1


async def test_a_wait_that_is_cancelled_ends_at_once(oncelog_broker: BrokerProcess, oncelog_topic: str) -> None:
    waiting = asyncio.create_task(oncelog_broker.wait_async.records(oncelog_topic, 1, timeout_s=3600))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_what_did_not_come_is_said(oncelog_broker: BrokerProcess, oncelog_topic: str) -> None:
    with pytest.raises(TimedOut, match=r"1 records in .* did not come within 0\.05 s; last seen: 0"):
        await oncelog_broker.wait_async.records(oncelog_topic, 1, timeout_s=0.05)


async def test_every_wait_has_both_forms(oncelog_broker: BrokerProcess) -> None:
    def names(waits: object) -> set[str]:
        return {name for name in dir(waits) if not name.startswith("_")} - {"core"}

    assert names(oncelog_broker.wait) == names(oncelog_broker.wait_async)

"""The load generator of `benchmarks.overload`, on a service that is too slow on purpose."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from benchmarks import overload
from tests import servers
from tests.fake.backend import command


def test_overload_counts_answers_and_refusals(fake_settings: dict[str, str]) -> None:
    more = {"FAKE_MS": "20", "SERVING_INSTANCES": "1", "SERVING_MAX_BATCH_SIZE": "1"}
    settings = {**fake_settings, **more, "SERVING_QUEUE_SIZE": "4"}
    with servers.api("tests.fake", settings) as url, servers.process_of(url) as process:

        async def load() -> overload.Seen:
            client = overload.Client(url, command())
            seen = overload.Seen()
            await overload.open_loop(client, rate=200, seconds=1, seen=seen)
            for _, writer in client.idle:
                writer.close()
                await writer.wait_closed()
            return seen

        with ThreadPoolExecutor(1) as executor:  # another test's browser may have a loop in this one
            seen = executor.submit(lambda: asyncio.run(load())).result()
        assert set(seen.latencies) == {"200", "503"}
        assert sum(len(values) for values in seen.latencies.values()) == 200
        assert seen.without_retry_after == 0
        assert overload.resident_mb(process.pid) > 10

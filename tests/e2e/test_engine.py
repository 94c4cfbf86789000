"""The engine's promises, on real processes: nothing lost, nothing swapped, nothing left behind."""

import gc
import http.client
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import requests

from serving_client.tcp import TcpClient
from tests import servers
from tests.e2e.conftest import CLASSES, write_model
from tests.e2e.test_service import metric, predict, raw_request, wait_for
from tests.fake.backend import Failure, command
from tests.http_load import Answer, send_all

WORKER = "serving.engine.worker"
WEB = "serving.cluster.frontend"
WATCHFUL = "tests.fake.watchful"
MANY_CORES = "tests.fake.many_cores"


@pytest.fixture
def senders() -> Iterator[ThreadPoolExecutor]:
    """Threads for requests that wait."""
    with ThreadPoolExecutor(32) as executor:
        yield executor


def programs(server: psutil.Process, module: str) -> list[psutil.Process]:
    """The living child processes that run `python -m MODULE`."""
    found = []
    for child in server.children(recursive=True):
        try:
            if module in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


@contextmanager
def fake_service(
    settings: dict[str, str], program: str = "serving", **more: str
) -> Iterator[tuple[str, psutil.Process]]:
    """A fake service's URL and its main process."""
    named = {f"SERVING_{name.upper()}": value for name, value in more.items()}
    url = f"http://127.0.0.1:{(port := servers.free_port())}"
    command_line = [program, "tests.fake", "--port", str(port)]
    with servers.running(command_line, f"{url}/health/ready", {**settings, **named}) as process:
        yield url, psutil.Process(process.pid)


def numbered(count: int) -> Iterator[tuple[int, bytes]]:
    """Pictures whose class is their number."""
    for index in range(count):
        yield index, command(class_index=index % CLASSES)


def check_right(answers: list[Answer], count: int) -> None:
    """Every question has one answer, and it is its own."""
    assert sorted(answer.tag for answer in answers) == list(range(count))
    wrong = [a for a in answers if a.status == 200 and a.label != str(a.tag % CLASSES)]
    assert not wrong


@contextmanager
def repeatedly(action: threading.Thread) -> Iterator[None]:
    """Runs a thread beside the block and waits for it."""
    action.start()
    try:
        yield
    finally:
        action.join()


def ready_workers(url: str) -> int:
    """As the service counts them."""
    return int(metric(url, "serving_ready_workers"))


@contextmanager
def busy(core: int) -> Iterator[None]:
    """Three programs that take all they get of a core."""
    code = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    programs = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the wait for a core is not known")
def test_a_worker_that_gets_little_of_a_core_is_kept(fake_settings: dict[str, str]) -> None:
    settings = {**fake_settings, "FAKE_CPU_MS": "20"}
    with fake_service(settings, instances="1", worker_timeout_ms="300") as (url, server):
        (worker,) = programs(server, WORKER)
        core = min(os.sched_getaffinity(0))
        worker.cpu_affinity([core])
        worker.nice(19)
        with busy(core):
            assert predict(url, command(class_index=3)).json()["prediction"] == "3"
        assert worker.is_running()
        assert metric(url, "serving_worker_restarts_total") == 0


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
def test_a_worker_that_dies_or_hangs_under_load_costs_no_request(
    fake_settings: dict[str, str], number: signal.Signals
) -> None:
    settings = {**fake_settings, "FAKE_MS": "5"}
    with fake_service(settings, worker_timeout_ms="1000") as (url, server):
        finished = threading.Event()

        def strike() -> None:
            try:
                for _ in range(3):
                    wait_for(lambda: ready_workers(url) == 2)
                    victim = random.choice(programs(server, WORKER))
                    victim.send_signal(number)
                    wait_for(lambda gone=victim: not gone.is_running())  # type: ignore[misc]
            finally:
                finished.set()

        def pictures() -> Iterator[tuple[int, bytes]]:
            tag = 0
            while not finished.is_set() or tag < 500:
                yield tag, command(class_index=tag % CLASSES)
                tag += 1

        with repeatedly(threading.Thread(target=strike)):
            answers = send_all(url, pictures(), senders=12)
        check_right(answers, len(answers))
        assert Counter(answer.status for answer in answers) == {200: len(answers)}
        assert metric(url, "serving_worker_restarts_total") == 3
        wait_for(lambda: metric(url, "serving_free_slots") == 256)


def test_without_workers_it_refuses_and_recovers_by_itself(
    fake_settings: dict[str, str], tmp_path: Path, senders: ThreadPoolExecutor
) -> None:
    with fake_service(fake_settings) as (url, server):
        waiting = senders.submit(predict, url, command(held=True))
        wait_for(lambda: metric(url, "serving_free_slots") == 255)
        (tmp_path / "broken").touch()
        for worker in programs(server, WORKER):
            worker.kill()
        assert waiting.result().status_code == 503
        wait_for(lambda: requests.get(f"{url}/health/ready", timeout=10).status_code == 503)
        refused = predict(url, command())
        assert refused.status_code == 503
        assert refused.json()["code"] == "unavailable"
        assert int(refused.headers["Retry-After"]) >= 1
        assert requests.get(f"{url}/health/live", timeout=10).status_code == 200
        (tmp_path / "gate").touch()
        (tmp_path / "broken").unlink()
        wait_for(lambda: requests.get(f"{url}/health/ready", timeout=10).status_code == 200)
        assert predict(url, command(class_index=7)).json()["prediction"] == "7"
        wait_for(lambda: metric(url, "serving_free_slots") == 256)


def test_a_service_whose_workers_cannot_start_says_why(
    fake_settings: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken").touch()
    with pytest.raises(RuntimeError, match="exit code"), fake_service(fake_settings):
        pass
    assert "commanded not to load" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (Failure.RAISE, "internal_error"),
        pytest.param(Failure.NOT_FINITE, "internal_error", marks=pytest.mark.slow),
        pytest.param(Failure.TOO_FEW_OUTPUTS, "internal_error", marks=pytest.mark.slow),
        (Failure.EXIT, "worker_crashed"),
    ],
)
def test_one_poisonous_picture_fails_alone(
    fake_settings: dict[str, str],
    tmp_path: Path,
    senders: ThreadPoolExecutor,
    failure: Failure,
    code: str,
) -> None:
    with fake_service(fake_settings, instances="1", max_batch_size="8") as (url, _):
        first = senders.submit(predict, url, command(held=True, class_index=99))
        wait_for((tmp_path / "gate.held").exists)
        healthy = [senders.submit(predict, url, command(class_index=i)) for i in range(3)]
        poison = senders.submit(predict, url, command(failure=failure))
        healthy += [senders.submit(predict, url, command(class_index=i)) for i in range(3, 6)]
        wait_for(lambda: metric(url, "serving_queue_depth") == 7)
        (tmp_path / "gate").touch()
        assert first.result().json()["prediction"] == "99"
        assert [f.result().json()["prediction"] for f in healthy] == [str(i) for i in range(6)]
        assert poison.result().status_code == 500
        assert poison.result().json()["code"] == code
        assert "secret" not in poison.result().text


def test_the_first_of_three_batched_requests_leaves_and_the_others_are_answered(
    fake_settings: dict[str, str], tmp_path: Path, senders: ThreadPoolExecutor
) -> None:
    with fake_service(fake_settings, instances="1", max_batch_size="4") as (url, _):
        for leave_while in ("waiting", "running"):
            (tmp_path / "gate").unlink(missing_ok=True)
            (tmp_path / "gate.held").unlink(missing_ok=True)
            blocker = senders.submit(predict, url, command(held=True))
            wait_for((tmp_path / "gate.held").exists)
            gone = raw_request(url, command(held=True))
            wait_for(lambda: metric(url, "serving_queue_depth") == 1)
            others = [senders.submit(predict, url, command(class_index=i)) for i in (3, 4)]
            wait_for(lambda: metric(url, "serving_queue_depth") == 3)
            cancelled = metric(url, "serving_cancelled_total")
            skipped = metric(url, "serving_skipped_total")
            if leave_while == "waiting":
                gone.close()
                wait_for(lambda before=cancelled: metric(url, "serving_cancelled_total") > before)  # type: ignore[misc]
            (tmp_path / "gate").touch()
            assert [f.result().json()["prediction"] for f in (blocker, *others)] == ["0", "3", "4"]
            wait_for(lambda: metric(url, "serving_free_slots") == 256)
            gone.close()
            assert metric(url, "serving_skipped_total") - skipped == (leave_while == "waiting")


def test_interactive_requests_overtake_bulk(
    fake_settings: dict[str, str], tmp_path: Path, senders: ThreadPoolExecutor
) -> None:
    with fake_service(fake_settings, instances="1", max_batch_size="2", queue_size="12") as (url, _):

        def ask(kind: str) -> int:
            return predict(url, command(), X_Priority=kind).status_code

        blocker = senders.submit(predict, url, command(held=True), X_Priority="bulk")
        wait_for((tmp_path / "gate.held").exists)
        bulk = [senders.submit(ask, "bulk") for _ in range(5)]
        wait_for(lambda: metric(url, "serving_queue_depth") == 5)
        assert predict(url, command(), X_Priority="bulk").status_code == 503
        interactive = [senders.submit(ask, "interactive") for _ in range(2)]
        wait_for(lambda: metric(url, "serving_queue_depth") == 7)
        (tmp_path / "gate").touch()
        assert blocker.result().status_code == 200
        assert {f.result() for f in (*bulk, *interactive)} == {200}
        assert metric(url, "serving_batch_size_sum") == 8
        assert metric(url, "serving_batch_size_count") == 5  # 1, then 2 interactive, then 2 + 2 + 1
        assert predict(url, command(), X_Priority="urgent").status_code == 422


def test_what_waits_is_computed_together_and_a_queue_delay_waits_for_more(
    fake_settings: dict[str, str], senders: ThreadPoolExecutor
) -> None:
    delayed = {"max_batch_size": "4", "max_queue_delay_us": "10000000", "instances": "1"}
    with fake_service(fake_settings, **delayed) as (url, _):
        answers = [senders.submit(predict, url, command(class_index=i)) for i in range(4)]
        assert [f.result().json()["prediction"] for f in answers] == ["0", "1", "2", "3"]
        assert metric(url, "serving_batch_size_count") == 1
        assert metric(url, "serving_batch_size_sum") == 4
    with fake_service(fake_settings, **delayed, preferred_batch_sizes="2") as (url, _):
        for _ in range(2):
            pair = [senders.submit(predict, url, command(class_index=i)) for i in range(2)]
            assert [f.result().json()["prediction"] for f in pair] == ["0", "1"]
        assert metric(url, "serving_batch_size_count") == 2


@pytest.mark.slow
def test_a_second_sigterm_ends_at_once(
    fake_settings: dict[str, str], tmp_path: Path, senders: ThreadPoolExecutor
) -> None:
    with fake_service(fake_settings) as (url, server):
        workers = programs(server, WORKER)
        held = senders.submit(predict, url, command(held=True))
        wait_for((tmp_path / "gate.held").exists)
        server.terminate()
        wait_for(lambda: requests.get(f"{url}/health/ready", timeout=10).status_code == 503)
        server.terminate()
        _, alive = psutil.wait_procs([server, *workers], timeout=10)
        assert not alive
        assert isinstance(held.exception(), requests.ConnectionError)


@pytest.mark.parametrize("web_processes", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_sigterm_under_load_answers_all_and_exits_with_0(
    fake_settings: dict[str, str], web_processes: str
) -> None:
    settings = {**fake_settings, "FAKE_MS": "20"}
    url = f"http://127.0.0.1:{(port := servers.free_port())}"
    line = ["serving", "tests.fake", "--port", str(port)]
    settings |= {"SERVING_WEB_PROCESSES": web_processes}
    with servers.running(line, f"{url}/health/ready", settings) as process:
        statuses: list[int] = []
        enough = threading.Event()

        def ask() -> None:
            try:
                while True:
                    statuses.append(predict(url, command()).status_code)
                    if len(statuses) > 30:
                        enough.set()
            except requests.ConnectionError:
                return  # the end: nobody listens any more

        with ThreadPoolExecutor(8) as executor:
            asking = [executor.submit(ask) for _ in range(8)]
            assert enough.wait(60)
            process.send_signal(signal.SIGTERM)
            for future in asking:
                future.result()
        assert process.wait(30) == 0
        assert set(statuses) <= {200, 503}
        assert len(statuses) > 30


@pytest.mark.slow
@pytest.mark.parametrize("web_processes", ["1", "2"])
def test_a_delayed_end_is_announced_by_readiness_and_by_taking_leave(
    fake_settings: dict[str, str], web_processes: str
) -> None:
    url = f"http://127.0.0.1:{(port := servers.free_port())}"
    settings = {"SERVING_SHUTDOWN_DELAY_S": "3600", "SERVING_WEB_PROCESSES": web_processes}
    command_line = ["serving", "tests.fake", "--port", str(port)]

    def leaves(connection: http.client.HTTPConnection) -> bool:
        connection.request("GET", "/health/ready")
        answer = connection.getresponse()
        answer.read()
        assert (answer.status == 503) == (answer.headers["Connection"] == "close")
        return answer.status == 503

    with (
        servers.running(command_line, f"{url}/health/ready", {**fake_settings, **settings}) as process,
        ExitStack() as held,
    ):
        connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=20) for _ in range(4)]
        for connection in connections:
            held.callback(connection.close)
            assert not leaves(connection)
        process.send_signal(signal.SIGTERM)
        for connection in connections:  # of all web processes
            wait_for(lambda one=connection: leaves(one))  # type: ignore[misc]
        answers = [predict(url, command(class_index=7)) for _ in range(4)]
        assert {answer.json()["prediction"] for answer in answers} == {"7"}
        assert {answer.headers["Connection"] for answer in answers} == {"close"}
        process.send_signal(signal.SIGTERM)  # whoever does not want to wait
        assert process.wait(20) == 128 + signal.SIGTERM


@pytest.mark.slow
@pytest.mark.parametrize("web_processes", ["1", "2"])
def test_after_the_delay_the_service_ends(fake_settings: dict[str, str], web_processes: str) -> None:
    with fake_service(fake_settings, shutdown_delay_s="0.2", web_processes=web_processes) as (_, server):
        server.terminate()
        assert server.wait(30) == 0


@pytest.mark.slow
@pytest.mark.parametrize("web_processes", ["1", "2"])
def test_the_processors_share_of_the_web_is_measured(
    fake_settings: dict[str, str], web_processes: str
) -> None:
    with fake_service(fake_settings, web_processes=web_processes) as (url, server):
        assert metric(url, "serving_web_processes") == int(web_processes)
        assert metric(url, "serving_cores") >= 1
        webs = programs(server, WEB) or [server]
        before = sum(sum(web.cpu_times()[:2]) for web in webs)
        measured = metric(url, "serving_web_cpu_seconds_total")
        after = sum(sum(web.cpu_times()[:2]) for web in webs)
        assert before - 0.1 <= measured <= after + 0.1  # the kernel counts in hundredths


@pytest.mark.parametrize("web_processes", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_sigkill_leaves_no_process_behind(fake_settings: dict[str, str], web_processes: str) -> None:
    with fake_service(fake_settings, web_processes=web_processes) as (_, server):
        children = server.children(recursive=True)
        assert len(children) >= 2
        server.kill()
        _, alive = psutil.wait_procs(children, timeout=2)
        assert not alive


@pytest.mark.slow
def test_answers_belong_to_their_questions(fake_settings: dict[str, str]) -> None:
    with fake_service(fake_settings, max_batch_size="16", instances="3") as (url, server):
        done = threading.Event()

        def restart_workers() -> None:
            while not done.is_set():
                wait_for(lambda: ready_workers(url) == 3)
                random.choice(programs(server, WORKER)).kill()
                done.wait(2)

        with repeatedly(threading.Thread(target=restart_workers)):
            try:
                answers = send_all(url, numbered(10_000), senders=64)
            finally:
                done.set()
        check_right(answers, 10_000)
        failed = [answer for answer in answers if answer.status != 200]
        assert {answer.body["code"] for answer in failed} <= {"worker_crashed"}
        assert len(failed) <= metric(url, "serving_worker_restarts_total") / 2


def test_overload_is_refused_at_the_door_and_leaves_nothing(fake_settings: dict[str, str]) -> None:
    settings = {**fake_settings, "FAKE_MS": "20"}
    with fake_service(settings, instances="1", max_batch_size="1", queue_size="8") as (url, _):
        answers = send_all(url, numbered(1500), senders=24)
        check_right(answers, 1500)
        assert {answer.status for answer in answers} == {200, 503}
        assert all(int(a.retry_after or 0) >= 1 for a in answers if a.status == 503)
        assert {a.body["code"] for a in answers if a.status == 503} == {"overloaded"}
        wait_for(lambda: metric(url, "serving_free_slots") == 8)
        assert predict(url, command(class_index=5)).json()["prediction"] == "5"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_thirty_thousand_requests_leave_nothing_behind(fake_settings: dict[str, str]) -> None:
    with fake_service(fake_settings) as (url, server):
        processes = [server, *programs(server, WORKER)]

        def resources() -> list[int]:
            return [process.num_fds() for process in processes]

        def memory() -> int:
            return sum(process.memory_full_info().uss for process in processes)

        def mixed(count: int) -> Iterator[tuple[int, bytes]]:
            good, bad = command(class_index=3), b"no picture"
            for index in range(count):
                if index % 500 == 0:
                    raw_request(url, command()).close()
                yield index, bad if index % 50 == 0 else good

        send_all(url, mixed(5_000), senders=8)
        gc.collect()
        wait_for(lambda: len(server.net_connections("tcp")) == 1)
        before, bytes_before = resources(), memory()
        answers = send_all(url, mixed(25_000), senders=8)
        assert Counter(a.status for a in answers) == {200: 24_500, 400: 500}
        wait_for(lambda: metric(url, "serving_free_slots") == 256)
        wait_for(lambda: len(server.net_connections("tcp")) == 1)
        assert resources() == before
        assert memory() < bytes_before * 1.1 + 10_000_000


def client_ports(web: psutil.Process) -> set[int]:
    """The other ends of a web process's connections."""
    return {address.raddr.port for address in web.net_connections("tcp") if address.raddr}


def connect_to_each(
    url: str, webs: list[psutil.Process], held: ExitStack
) -> list[http.client.HTTPConnection]:
    """Connections that have been answered, opened until each web process has one."""
    made: list[http.client.HTTPConnection] = []

    def one_more() -> bool:
        made.append(http.client.HTTPConnection(urlsplit(url).netloc, timeout=30))
        held.callback(made[-1].close)
        made[-1].request("GET", "/health/live")
        assert made[-1].getresponse().read()
        return all(client_ports(web) for web in webs)

    wait_for(one_more)
    return made


@pytest.mark.slow
def test_several_web_processes_share_one_engine(fake_settings: dict[str, str]) -> None:
    with fake_service(fake_settings, web_processes="2", queue_size="10") as (url, server):
        assert len(programs(server, WEB)) == 2
        with ExitStack() as held:
            connect_to_each(url, programs(server, WEB), held)
        answers = send_all(url, numbered(500), senders=4)
        check_right(answers, 500)
        assert {answer.status for answer in answers} == {200}
        # /metrics adds up over both, whichever answers
        for _ in range(2):
            assert metric(url, "serving_batch_size_sum") == 500
            assert metric(url, "serving_free_slots") == 10


def test_with_many_cores_there_are_as_many_web_processes_as_the_workers_need(
    fake_settings: dict[str, str],
) -> None:
    settings = {**fake_settings, "FAKE_MS": "2", "SERVING_INSTANCES": "4"}
    with fake_service(settings, MANY_CORES, device="cpu", max_batch_size="1") as (url, server):
        model = requests.get(f"{url}/model", timeout=10).json()
        assert model["web_processes_reason"].startswith("8 cores, ")
        assert 1 < model["web_processes"] <= 8
        assert len(programs(server, WEB)) == model["web_processes"]
        assert metric(url, "serving_web_processes") == model["web_processes"]
        check_right(send_all(url, numbered(200), senders=8), 200)
        assert metric(url, "serving_free_slots") == 256


@pytest.mark.slow
def test_a_web_process_that_dies_is_replaced_and_its_slots_come_back(
    fake_settings: dict[str, str], tmp_path: Path, senders: ThreadPoolExecutor
) -> None:
    with fake_service(fake_settings, web_processes="2", queue_size="64") as (url, server):
        webs = programs(server, WEB)
        held: list[Future[requests.Response]] = []

        def both_hold_some() -> bool:
            held.append(senders.submit(predict, url, command(held=True)))
            wait_for(lambda: metric(url, "serving_free_slots") == 64 - len(held))
            counts = [len(client_ports(web)) for web in webs]
            return all(counts) and sum(counts) == len(held)  # none is one that asked for metrics

        wait_for(both_hold_some)
        webs[0].kill()
        wait_for(lambda: len(programs(server, WEB)) == 2 and webs[0] not in programs(server, WEB))
        (tmp_path / "gate").touch()
        results = [future.exception() or future.result() for future in held]
        lost = [r for r in results if isinstance(r, requests.ConnectionError)]
        answered = [r for r in results if isinstance(r, requests.Response)]
        assert lost
        assert answered
        assert len(lost) + len(answered) == len(held)
        assert {response.status_code for response in answered} == {200}
        wait_for(lambda: metric(url, "serving_free_slots") == 64)
        check_right(send_all(url, numbered(50), senders=2), 50)


@pytest.mark.slow
def test_a_web_process_that_no_longer_runs_is_replaced(fake_settings: dict[str, str]) -> None:
    with fake_service(fake_settings, WATCHFUL, web_processes="2") as (url, server), ExitStack() as held:
        stopped = programs(server, WEB)[0]
        connections = connect_to_each(url, programs(server, WEB), held)
        theirs = client_ports(stopped)
        stopped.send_signal(signal.SIGSTOP)
        hanging = [one for one in connections if one.sock.getsockname()[1] in theirs]
        assert hanging
        for connection in hanging:
            connection.request("GET", "/health/live")
            with pytest.raises(ConnectionError):
                connection.getresponse()
        wait_for(lambda: len(programs(server, WEB)) == 2 and stopped not in programs(server, WEB))
        check_right(send_all(url, numbered(50), senders=4), 50)


@pytest.mark.slow
def test_a_web_process_that_no_longer_runs_does_not_hold_up_the_end(
    fake_settings: dict[str, str],
) -> None:
    with fake_service(fake_settings, WATCHFUL, web_processes="2") as (_, server):
        programs(server, WEB)[0].send_signal(signal.SIGSTOP)
        server.terminate()
        assert server.wait(30) == 0


@pytest.mark.slow
@pytest.mark.parametrize("web_processes", ["1", "2"])
def test_versions_are_switched_without_a_failed_request(
    fake_settings: dict[str, str], tmp_path: Path, web_processes: str
) -> None:
    folder = tmp_path / "fake"
    write_model(folder, "1", "one-")
    write_model(folder / "2", "2", "two-")
    settings = {**fake_settings, "SERVING_MODEL_DIR": str(folder), "FAKE_MS": "2"}
    keys = {"api_key": "guest", "admin_key": "chief", "web_processes": web_processes}
    with fake_service(settings, **keys) as (url, server):
        guest, chief = {"Authorization": "Bearer guest"}, {"Authorization": "Bearer chief"}

        def switch(version: str, headers: dict[str, str]) -> requests.Response:
            body = {"version": version}
            return requests.post(f"{url}/admin/version", json=body, headers=headers, timeout=60)

        assert switch("2", guest).status_code == 401
        unknown = switch("../2", chief)
        assert unknown.status_code == 422
        stop = threading.Event()

        def pictures() -> Iterator[tuple[int, bytes]]:
            tag = 0
            while not stop.is_set():
                yield tag, command(class_index=tag % CLASSES)
                tag += 1

        def switch_to_and_fro() -> None:
            try:
                for version in ("2", "1", "2"):
                    assert switch(version, chief).json() == {"version": version}
                    assert len(programs(server, WORKER)) == 2  # the one before is gone
                    assert requests.get(f"{url}/model", timeout=10).json()["version"] == version
            finally:
                stop.set()

        with ThreadPoolExecutor(1) as executor:
            switching = executor.submit(switch_to_and_fro)
            answers = send_all(url, pictures(), senders=6, headers=guest)
            switching.result()
        assert {answer.status for answer in answers} == {200}
        names = {f"{word}-{a.tag % CLASSES}" for a in answers for word in ("one", "two")}
        assert all(answer.label in names for answer in answers)
        assert {str(answer.label).split("-")[0] for answer in answers} == {"one", "two"}
        wait_for(lambda: len(programs(server, WORKER)) == 2)


@pytest.mark.slow
def test_a_version_may_have_more_labels(fake_settings: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "fake"
    write_model(folder, "1", classes=3)
    write_model(folder / "2", "2", classes=5)
    port = servers.free_port()
    settings = {**fake_settings, "SERVING_MODEL_DIR": str(folder)}
    with (
        fake_service(settings, admin_key="chief", tcp_port=str(port)) as (url, _),
        TcpClient("127.0.0.1", port) as client,
    ):
        path, photo = f"{url}/predict?top_k=5", command(class_index=4)
        assert requests.post(path, data=photo, timeout=30).status_code == 422
        headers = {"Authorization": "Bearer chief"}
        requests.post(f"{url}/admin/version", json={"version": "2"}, headers=headers, timeout=60)
        assert len(requests.post(path, data=photo, timeout=30).json()["top"]) == 5
        assert len(client.predict(photo, top_k=5).content["top"]) == 5


@pytest.mark.slow
def test_a_version_that_cannot_be_loaded_changes_nothing(
    fake_settings: dict[str, str], tmp_path: Path
) -> None:
    with fake_service(fake_settings, admin_key="chief") as (url, server):
        (tmp_path / "broken").touch()
        headers = {"Authorization": "Bearer chief"}
        answer = requests.post(
            f"{url}/admin/version", json={"version": "2"}, headers=headers, timeout=60
        )
        assert answer.status_code == 422
        assert "commanded not to load" in answer.json()["detail"]
        assert predict(url, command(class_index=4)).json()["prediction"] == "4"
        assert len(programs(server, WORKER)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("web_processes", ["1", "2"])
def test_a_version_whose_workers_do_not_start_any_more_can_be_left(
    fake_settings: dict[str, str], tmp_path: Path, senders: ThreadPoolExecutor, web_processes: str
) -> None:
    folder = tmp_path / "fake"
    write_model(folder, "1", "one-")
    write_model(folder / "2", "2", "two-")
    settings = {**fake_settings, "SERVING_MODEL_DIR": str(folder), "FAKE_BROKEN_VERSION": "1"}
    keys = {"admin_key": "chief", "web_processes": web_processes}
    with fake_service(settings, **keys) as (url, server):
        held = [senders.submit(predict, url, command(held=True)) for _ in range(2)]
        wait_for((tmp_path / "gate.held").exists)
        (tmp_path / "broken").touch()
        for worker in programs(server, WORKER):
            worker.kill()
        assert {future.result().status_code for future in held} == {503}
        answer = requests.post(
            f"{url}/admin/version",
            json={"version": "2"},
            headers={"Authorization": "Bearer chief"},
            timeout=30,
        )
        assert answer.json() == {"version": "2"}
        assert predict(url, command(class_index=4)).json()["prediction"] == "two-4"


@pytest.mark.slow
@pytest.mark.parametrize("web_processes", ["1", "2"])
def test_an_idle_service_does_nothing(fake_settings: dict[str, str], web_processes: str) -> None:
    with fake_service(fake_settings, WATCHFUL, web_processes=web_processes) as (url, server):
        assert predict(url, command()).status_code == 200
        workers = programs(server, WORKER)
        idle = [*workers, *programs(server, WEB), server]
        time.sleep(2)  # what the request left to do is done by then, and nobody has a connection

        def switches() -> int:
            total = 0
            for process in idle:
                counts = process.num_ctx_switches()
                total += counts.voluntary + counts.involuntary
            return total

        before = switches()
        time.sleep(3)
        assert switches() == before
        assert os.getpgid(workers[0].pid)


@pytest.mark.slow
def test_workers_give_way_to_the_web_process(fake_settings: dict[str, str]) -> None:
    with fake_service(fake_settings) as (_, server):
        threads = [thread for worker in programs(server, WORKER) for thread in worker.threads()]
        assert len(threads) >= 2
        for thread in threads:
            assert os.getpriority(os.PRIO_PROCESS, thread.id) > os.getpriority(
                os.PRIO_PROCESS, server.pid
            )

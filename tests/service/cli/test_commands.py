"""The command line as its users meet it: output, exit codes, what it loads; over a real API without a cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from service.cli.follow import follow_job
from service.cli.options import Form
from service.client import AmbiguousError, Client, RefusedError, UnreachableError
from tests.service.cli.calls import ROOT, SPEC, Api, Run, stranger
from tests.waiting import LIMIT_S


def job_file(folder: Path, **changes: Any) -> Path:
    file = folder / "job.yaml"
    file.write_text(json.dumps({**SPEC, **changes}))
    return file


def test_help_is_quick_because_it_loads_nothing_heavy() -> None:
    program = (
        "import sys; from service.cli.main import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'ray', 'torch', 'sqlalchemy', 'fastapi', 'pydantic', 'httpx2', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "submit" in done.stdout


def test_commands_about_jobs_load_neither_ray_nor_torch_nor_sql(api: Api) -> None:
    program = (
        "import sys; from service.cli.main import app\n"
        "try: app(['jobs'])\nexcept SystemExit: pass\n"
        "print(sorted({'ray', 'torch', 'sqlalchemy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=api.environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_a_demonstration_without_room_for_two_workers_is_refused_before_anything_starts(
    concertina: Run, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    done = concertina("demo", "--exit", "--home", str(home), "--num-cpus", "1")
    assert done.returncode == 2
    assert "num_cpus=1 has no room for the 2 workers" in done.stderr
    assert "or give 2 or more" in done.stderr
    assert not home.exists()


@pytest.mark.parametrize("arguments", [("--help",), ("submit", "--help"), ("demo", "--help"), ("serve", "-h")])
def test_help_ends_well(concertina: Run, arguments: tuple[str, ...]) -> None:
    done = concertina(*arguments)
    assert (done.returncode, done.stderr) == (0, "")


def test_each_kind_of_end_has_its_exit_code(
    concertina: Run, call: Run, api: Api, tmp_path: Path, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.client.RETRY_PAUSES_S", (0.0, 0.0, 0.0))
    ends = {
        ("jobs",): 0,
        ("frobnicate",): 2,
        ("scale", job["id"], "many"): 2,
        ("submit", str(tmp_path / "gone.yaml")): 2,
        ("show", "no-such-job"): 4,
        ("download", job["id"]): 4,
        ("show", job["id"][:4]): 2,
    }
    call("submit", str(job_file(tmp_path)))
    assert {arguments: call(*arguments).returncode for arguments in ends} == ends
    assert call("jobs", CONCERTINA_TOKEN="ctn_wrong").returncode == 3
    assert concertina("jobs", "--url", "http://127.0.0.1:9", CONCERTINA_TOKEN="x").returncode == 5
    assert concertina("jobs", "--url", "https://example.org", CONCERTINA_HOME=str(api.home)).returncode == 3
    assert concertina("jobs", CONCERTINA_PROT="1").returncode == 2


def test_a_token_of_a_file_with_another_line_end_is_understood(call: Run, api: Api) -> None:
    token = (api.home / "token").read_text().strip()
    done = call("jobs", CONCERTINA_TOKEN=f"{token}\r\n")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("token", ["ctn_geh\r\neim", "ctn_geheim_ü", "ctn_\udcff"])
def test_what_can_be_no_token_is_refused_and_never_shown(call: Run, token: str) -> None:
    done = call("jobs", CONCERTINA_TOKEN=token)
    assert done.returncode == 3
    assert "CONCERTINA_TOKEN is not a token" in done.stderr
    assert "ctn_" not in done.stderr


@pytest.mark.parametrize(
    "address", ["nonsense", "ftp://x", "http://127.0.0.1:abc", "http://a:70000", "http://", "http://[::1"]
)
def test_an_address_that_cannot_be_called_is_refused_before_any_call(concertina: Run, address: str) -> None:
    for done in (concertina("jobs", "--url", address), concertina("jobs", "--url", address, CONCERTINA_TOKEN="x")):
        assert done.returncode == 2
        assert f"--url='{address}' is no address; give one such as http://127.0.0.1:8420" in done.stderr


def test_a_name_that_can_be_no_host_is_refused(concertina: Run) -> None:
    done = concertina("jobs", "--url", "http://☃.☃x", CONCERTINA_TOKEN="x")
    assert done.returncode == 2
    assert "'http://☃.☃x' cannot be called (Invalid IDNA hostname" in done.stderr


@pytest.mark.parametrize(
    ("status", "body", "headers", "told"),
    [
        (200, b"<html>hello</html>", {}, "answers, but is not Concertina"),
        (200, b"", {}, "its answer has no 'jobs'"),
        (200, b"[1]", {}, "where a JSON object is due"),
        (200, b'{"status": "ok"}', {}, "its answer has no 'jobs'"),
        (302, b"", {"Location": "/login"}, "it redirects to /login"),
        (
            308,
            b"",
            {"Location": "https://a.example/api/v1/jobs?page_size=1"},
            "it redirects to https://a.example; give",
        ),
        (304, b"", {}, "answers, but is not Concertina"),
    ],
)
def test_an_answer_of_another_server_is_told_as_such(
    concertina: Run, status: int, body: bytes, headers: dict[str, str], told: str
) -> None:
    with stranger(status, body, headers) as address:
        done = concertina("jobs", "--url", address, CONCERTINA_TOKEN="x")
    assert done.returncode == 5
    assert address in done.stderr
    assert told in done.stderr


def test_a_refused_spec_names_every_field(call: Run, tmp_path: Path) -> None:
    done = call("submit", str(job_file(tmp_path, stepz=3, batch={"global_size": 0})))
    assert done.returncode == 2
    assert "/stepz" in done.stderr
    assert "did you mean" in done.stderr
    assert "/batch/global_size" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_not_built_is_refused_with_its_alternative(call: Run, tmp_path: Path) -> None:
    done = call("submit", str(job_file(tmp_path)), "--set", "compile=true")
    assert done.returncode == 2
    assert "NOT_AVAILABLE" in done.stderr
    assert "/compile" in done.stderr


def test_a_submitted_job_is_found_by_id_prefix_and_name(call: Run, tmp_path: Path) -> None:
    done = call("submit", str(job_file(tmp_path, name="found")), "--set", "seed=7", "-o", "json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["spec"]["seed"] == 7
    for reference in (made["id"], made["id"][:-2], "found"):
        shown = json.loads(call("show", reference, "-o", "json").stdout)
        assert shown["id"] == made["id"]


def test_of_two_jobs_with_one_name_the_newest_is_meant(api: Api) -> None:
    with api.client() as client:
        client.submit({**SPEC, "name": "twin"})
        newest = client.submit({**SPEC, "name": "twin"})
        assert client.find_job("twin")["id"] == newest["id"]
        with pytest.raises(AmbiguousError, match=r"begins \d+ ids"):
            client.find_job(newest["id"][:4])


def test_the_same_key_submits_once(api: Api) -> None:
    with api.client() as client:
        assert client.submit(SPEC, key="once")["id"] == client.submit(SPEC, key="once")["id"]
        with pytest.raises(RefusedError) as caught:
            client.submit({**SPEC, "steps": 11}, key="once")
    assert caught.value.status == 422


def test_a_folder_of_code_is_sent_along_and_its_requirements_become_dependencies(
    call: Run, api: Api, tmp_path: Path
) -> None:
    code = tmp_path / "mine"
    code.mkdir()
    (code / "train.py").write_text("def build(config): ...\n")
    (code / "big.dat").write_bytes(b"x" * 3000)
    (code / "data.bin").write_bytes(b"y" * 9000)
    (code / ".gitignore").write_text("*.bin\n")
    (code / "requirements.txt").write_text("einops>=0.8\n")
    file = job_file(tmp_path, name="mine", entrypoint="train:build", code="./mine")
    done = call("submit", str(file), "-o", "json")
    assert done.returncode == 0, done.stderr
    assert "4 files" in done.stderr
    assert "3 kB  big.dat" in done.stderr
    spec = json.loads(done.stdout)["spec"]
    assert spec["dependencies"] == ["einops>=0.8"]
    stored = list((api.home / "storage" / "bundles").glob("*.zip"))
    names = [zipfile.ZipFile(path).namelist() for path in stored]
    assert [".gitignore", "big.dat", "requirements.txt", "train.py"] in names
    again = call("submit", str(file), "--set", "dependencies=[einops==0.8.1]", "-o", "json")
    assert json.loads(again.stdout)["spec"]["dependencies"] == ["einops==0.8.1"]
    assert json.loads(again.stdout)["spec"]["bundle"] == spec["bundle"]
    none = call("submit", str(file), "--set", "dependencies=[]", "-o", "json")
    assert json.loads(none.stdout)["spec"]["dependencies"] == []


def test_code_that_cannot_travel_is_refused_before_anything_is_sent(call: Run, tmp_path: Path) -> None:
    (tmp_path / "mine" / "workers").mkdir(parents=True)
    (tmp_path / "mine" / "workers" / "__init__.py").touch()
    done = call("submit", str(job_file(tmp_path, entrypoint="train:build", code="./mine")))
    assert done.returncode == 2
    assert "keeps for itself" in done.stderr


@pytest.mark.parametrize(
    ("wrong", "pointer"),
    [
        ("stepz=3", "/stepz"),
        ('steps="5"', "/steps"),
        ("compile=true", "/compile"),
        ("init_from={job: nobody}", "/init_from/job"),
        ("dependencies=[not a requirement]", "/dependencies/0"),
    ],
)
def test_no_code_is_sent_for_a_job_that_is_refused(
    call: Run, api: Api, tmp_path: Path, wrong: str, pointer: str
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.py").write_text(f"# {wrong}, in no other bundle\n")
    before = set((api.home / "storage").rglob("*.zip"))
    done = call("submit", str(job_file(tmp_path, entrypoint="train:build", code="./mine")), "--set", wrong)
    assert done.returncode == 2
    assert pointer in done.stderr
    assert "/bundle" not in done.stderr
    assert set((api.home / "storage").rglob("*.zip")) == before


def test_a_job_is_paused_resumed_cancelled_and_tried_again(call: Run, job: dict[str, Any]) -> None:
    states = [
        json.loads(call(*command, job["id"], "-o", "json").stdout)["state"]
        for command in (
            ("pause",),
            ("pause",),
            ("resume",),
            ("cancel",),
            ("retry",),
            ("cancel",),
            ("retry", "--from-start"),
        )
    ]
    assert states == ["PAUSED", "PAUSED", "QUEUED", "CANCELLED", "QUEUED", "CANCELLED", "QUEUED"]
    refused = call("resume", job["id"])
    assert refused.returncode == 0  # it is queued already: that is what resume asks for


def test_a_size_outside_the_range_is_refused(call: Run, api: Api) -> None:
    with api.client() as client:
        made = client.submit({**SPEC, "workers": {"min": 1, "max": 4}})
    done = call("scale", made["id"], "3", "--reason", "more", "-o", "json")
    assert json.loads(done.stdout)["workers"]["desired"] == 3
    assert call("scale", made["id"], "5").returncode == 2
    assert json.loads(call("scale", made["id"], "1-2", "-o", "json").stdout)["workers"]["max"] == 2
    assert call("scale", made["id"], "auto").returncode == 0


@pytest.mark.parametrize(
    "command", ["show", "logs", "metrics", "timeline", "explain", "checkpoints"], ids=lambda command: command
)
def test_every_look_at_a_job_has_words_and_json(call: Run, job: dict[str, Any], command: str) -> None:
    words = call(command, job["id"])
    assert (words.returncode, words.stderr) == (0, "")
    found = json.loads(call(command, job["id"], "-o", "json").stdout)
    assert isinstance(found, dict)


def test_a_metric_that_is_not_there_is_told_beside_the_table(call: Run, job: dict[str, Any]) -> None:
    done = call("metrics", job["id"], "--keys", "loss,eval.acuracy", "-o", "json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["keys"] == []
    assert "nothing is reported as loss, eval.acuracy so far; reported are: none" in done.stderr
    refused = call("metrics", job["id"], "--keys", "los")
    assert refused.returncode == 2
    assert "did you mean 'loss'?" in refused.stderr


def test_lists_comparisons_and_the_cluster_have_words_and_json(call: Run, api: Api, job: dict[str, Any]) -> None:
    with api.client() as client:
        other = client.submit({**SPEC, "seed": 3})
    for command in (
        ("jobs",),
        ("jobs", "--state", "QUEUED"),
        ("compare", job["id"], other["id"]),
        ("cluster",),
        ("version",),
    ):
        words = call(*command)
        assert (words.returncode, words.stderr) == (0, ""), command
        assert isinstance(json.loads(call(*command, "-o", "json").stdout), dict)
    compared = call("compare", job["id"], other["id"])
    assert "seed" in compared.stdout


def test_interrupting_follow_leaves_the_job_and_says_so(api: Api, tmp_path: Path) -> None:
    file = job_file(tmp_path, name="followed")
    process = subprocess.Popen(
        [sys.executable, "-m", "service.cli.main", "submit", str(file), "--follow"],
        cwd=ROOT,
        env={
            "PATH": os.environ["PATH"],
            "CONCERTINA_URL": api.url,
            "CONCERTINA_HOME": str(api.home),
            "PYTHONUNBUFFERED": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    told = ""
    while "Queued" not in told:
        line = process.stdout.readline()
        assert line, told
        told += line
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert "the job goes on" in rest
    with api.client() as client:
        assert client.find_job("followed")["state"] == "QUEUED"


def test_following_a_job_that_is_cancelled_ends_with_1(api: Api, tmp_path: Path) -> None:
    with api.client() as client:
        made = client.submit(SPEC)

        def cancel_instead_of_waiting(_: float) -> None:
            client.command(made["id"], "cancel")

        assert follow_job(client, made["id"], Form.JSON, sleep=cancel_instead_of_waiting) == 1


def test_calls_that_may_be_repeated_survive_a_restart_of_the_api_and_others_do_not(call: Run) -> None:
    pauses: list[float] = []
    with Client("http://127.0.0.1:9", "x", sleep=pauses.append) as client:
        for call in (lambda: client.job("a"), lambda: client.submit(SPEC), lambda: client.scale("a", 2, None)):
            pauses.clear()
            with pytest.raises(UnreachableError, match="concertina serve"):
                call()
            assert len(pauses) == 3
        pauses.clear()
        with pytest.raises(UnreachableError):
            client.command("a", "retry")
        assert pauses == []
        assert not client.is_alive()


def test_a_downloaded_file_is_whole_or_absent(api: Api, job: dict[str, Any], tmp_path: Path) -> None:
    with api.client() as client:
        target = tmp_path / "weights"
        with pytest.raises(RefusedError):
            client.download(f"/jobs/{job['id']}/checkpoints/3", target)
        assert list(tmp_path.iterdir()) == []
        assert client.download(f"/jobs/{job['id']}/explain", target) == target.stat().st_size

"""The judge against a real HTTP server on loopback that speaks the OpenAI API and misbehaves as real ones do."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from eval.needle.judge import Judge, parse_score

Behaviour = Callable[[BaseHTTPRequestHandler, dict], None]


def reply(text: str) -> Behaviour:
    def act(handler: BaseHTTPRequestHandler, request: dict) -> None:
        message = {"role": "assistant", "content": text}
        body = {
            "id": "x", "object": "chat.completion", "created": 0, "model": request["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }  # fmt: skip
        send(handler, 200, json.dumps(body))

    return act


def fail(status: int) -> Behaviour:
    return lambda handler, request: send(handler, status, json.dumps({"error": {"message": f"status {status}"}}))


def hang(handler: BaseHTTPRequestHandler, request: dict) -> None:
    time.sleep(0.3)


def garbage(handler: BaseHTTPRequestHandler, request: dict) -> None:
    send(handler, 200, "<html>not what you asked for</html>")


def send(handler: BaseHTTPRequestHandler, status: int, body: str) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("retry-after-ms", "5")
    handler.end_headers()
    handler.wfile.write(body.encode())


class Server:
    """Plays `script` (the last act for ever) and remembers what it was asked."""

    def __init__(self) -> None:
        self.script: list[Behaviour] = []
        self.requests: list[dict] = []
        self.keys: list[str] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                owner.requests.append({"path": self.path, **request})
                owner.keys.append(self.headers["Authorization"])
                act = owner.script.pop(0) if len(owner.script) > 1 else owner.script[0]
                act(self, request)

            def log_message(self, *arguments: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


def judge(server: Server, tmp_path: Path, **changes: object) -> Judge:
    settings: dict = {"url": server.url, "key": "secret", "cache": tmp_path / "cache", "timeout": 0.1, "parallel": 1}
    return Judge("judge-1", **{**settings, **changes})


def test_request_score_and_cache(server, tmp_path):
    server.script = [reply("Close enough. [[7]]")]
    assert judge(server, tmp_path).score("How good?") == 7
    (request,) = server.requests
    assert request["path"] == "/v1/chat/completions"
    assert request["model"] == "judge-1"
    assert request["temperature"] == 0
    assert request["messages"] == [{"role": "user", "content": "How good?"}]
    assert server.keys == ["Bearer secret"]
    assert judge(server, tmp_path).score("How good?") == 7  # a new process: from disk
    assert len(server.requests) == 1
    (kept,) = (file.read_text() for file in (tmp_path / "cache").iterdir())
    assert "Close enough. [[7]]" in kept and "secret" not in kept
    judge(server, tmp_path).score("How bad?")
    assert len(server.requests) == 2


@pytest.mark.parametrize("trouble", [fail(429), fail(500), fail(503), hang], ids=["429", "500", "503", "time-out"])
def test_passing_trouble_is_waited_out(trouble, server, tmp_path):
    server.script = [trouble, trouble, reply("[[4]]")]
    assert judge(server, tmp_path).score("x") == 4
    assert len(server.requests) == 3


def test_lasting_trouble_is_an_error_and_keeps_what_was_paid_for(server, tmp_path):
    server.script = [reply("[[9]]"), fail(429)]
    with pytest.raises(ValueError, match=r"judge-1.*429.*kept"):
        judge(server, tmp_path, retries=2, reasks=1).score_all(["a", "b", "c"])
    assert [request["messages"][0]["content"] for request in server.requests].count("b") == 1 + 2
    server.script = [reply("[[2]]")]
    server.requests.clear()
    assert judge(server, tmp_path).score_all(["a", "b", "c", "b"]) == [9, 2, 2, 2]
    assert len(server.requests) == 2  # a was judged before, b is asked once


def test_refusal_is_not_retried(server, tmp_path):
    server.script = [fail(401)]
    with pytest.raises(ValueError, match="401"):
        judge(server, tmp_path).score("x")
    assert len(server.requests) == 1


def test_replies_without_a_score_are_asked_again_then_an_error(server, tmp_path):
    server.script = [reply("I think it is good."), reply("[[11]]"), reply("Rating: [[ 8 ]]")]
    assert judge(server, tmp_path).score("x") == 8
    server.script = [reply("no number")]
    server.requests.clear()
    with pytest.raises(ValueError, match=r"no score from \[\[1\]\] to \[\[10\]\] in 3 replies.*no number"):
        judge(server, tmp_path, reasks=2).score("y")
    assert len(server.requests) == 3
    server.script = [garbage]
    with pytest.raises(ValueError, match=r"judge-1.*not a chat completion"):
        judge(server, tmp_path, reasks=1).score("z")
    server.script = [garbage, reply("[[6]]")]
    assert judge(server, tmp_path).score("z") == 6


def test_nobody_there(tmp_path):
    gone = Server()
    gone.http.shutdown()
    gone.http.server_close()
    with pytest.raises(ValueError, match="judge-1"):
        judge(gone, tmp_path, retries=0).score("x")


def test_damaged_cache_entries_are_asked_for_again(server, tmp_path):
    server.script = [reply("[[5]]")]
    judge(server, tmp_path).score("x")
    (entry,) = (tmp_path / "cache").iterdir()
    entry.write_text(entry.read_text()[:20])
    assert judge(server, tmp_path).score("x") == 5
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("text", "score"),
    [("[[1]]", 1), ("first [[3]], then [[10]]", 10), ("[[0]]", None), ("[[11]]", None), ("[5]", None), ("", None)],
)
def test_parse_score(text, score):
    assert parse_score(text) == score


def test_an_answer_is_kept_for_one_judge_and_one_question(server, tmp_path):
    server.script = [reply("[[5]]"), reply("[[6]]"), reply("[[7]]")]
    asked = (("one", "x"), ("two", "x"), ("one", "y"))
    assert [Judge(model, server.url, "k", tmp_path / "cache").score(prompt) for model, prompt in asked] == [5, 6, 7]
    assert [Judge(model, server.url, "k", tmp_path / "cache").score(prompt) for model, prompt in asked] == [5, 6, 7]
    assert len(server.requests) == 3

"""The judge against a real HTTP server on loopback that speaks the OpenAI API and misbehaves as real ones do."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from eval.needle.judge import Judge, parse_score

Behaviour = Callable[[BaseHTTPRequestHandler], None]


def reply(text: str) -> Behaviour:
    choice = {"message": {"role": "assistant", "content": text}, "index": 0, "finish_reason": "stop"}
    body = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    return lambda handler: send(handler, 200, json.dumps(body))


def fail(status: int) -> Behaviour:
    return lambda handler: send(handler, status, json.dumps({"error": {"message": f"status {status}"}}))


def hang(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(0.3)


def garbage(handler: BaseHTTPRequestHandler) -> None:
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
        self.asked: list[str] = []
        self.requests: list[tuple[str, dict, str]] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                owner.requests.append((self.path, request, self.headers["Authorization"]))
                owner.asked.append(request["messages"][0]["content"])
                (owner.script.pop(0) if len(owner.script) > 1 else owner.script[0])(self)

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


def judge(server: Server, tmp_path: Path, model: str = "judge-1", **changes: object) -> Judge:
    settings: dict = {"url": server.url, "key": "secret", "cache": tmp_path / "cache", "timeout": 0.1, "parallel": 1}
    return Judge(model, **{**settings, **changes})


def test_a_score_is_asked_for_once_by_judge_and_prompt(server, tmp_path):
    server.script = [reply("Close enough. [[7]]"), reply("[[6]]"), reply("[[5]]")]
    asked = (("judge-1", "How good?"), ("two", "How good?"), ("judge-1", "How bad?"))
    for _ in range(2):  # the second time from disk
        assert [judge(server, tmp_path, model).score(prompt) for model, prompt in asked] == [7, 6, 5]
    assert len(server.requests) == 3
    path, request, key = server.requests[0]
    assert (path, key) == ("/v1/chat/completions", "Bearer secret")
    message = {"role": "user", "content": "How good?"}
    assert request == {"model": "judge-1", "temperature": 0, "messages": [message]}
    assert not any("secret" in file.read_text() for file in (tmp_path / "cache").iterdir())
    for file in (tmp_path / "cache").iterdir():
        file.write_text(file.read_text()[:20])  # damaged
    server.script = [reply("[[9]]")]
    assert judge(server, tmp_path).score("How good?") == 9


@pytest.mark.parametrize("trouble", [fail(429), fail(503), hang, garbage, reply("It is good."), reply("[[11]]")])
def test_passing_trouble_is_waited_out(trouble, server, tmp_path):
    server.script = [trouble, trouble, reply("Rating: [[ 4 ]]")]
    assert judge(server, tmp_path).score("x") == 4
    assert len(server.requests) == 3


def test_lasting_trouble_is_an_error_and_keeps_what_was_paid_for(server, tmp_path):
    server.script = [reply("[[9]]"), fail(429)]
    with pytest.raises(ValueError, match=r"judge-1.*429.*kept"):
        judge(server, tmp_path, retries=2, reasks=1).score_all(["a", "b", "c"])
    assert server.asked.count("b") == 1 + 2
    server.script = [reply("[[2]]")]
    server.requests.clear()
    assert judge(server, tmp_path).score_all(["a", "b", "c", "b"]) == [9, 2, 2, 2]
    assert len(server.requests) == 2  # a was judged before, b is asked once
    for act, count, told in ((fail(401), 1, "401"), (reply("no number"), 3, "no number"), (garbage, 3, "not a chat")):
        server.script = [act]
        server.requests.clear()
        with pytest.raises(ValueError, match=told):
            judge(server, tmp_path, reasks=2).score(told)
        assert len(server.requests) == count
    server.url = "http://127.0.0.1:9/v1"
    with pytest.raises(ValueError, match="judge-1"):
        judge(server, tmp_path, retries=0).score("nobody there")


@pytest.mark.parametrize(("text", "score"), [
    ("[[1]]", 1), ("first [[3]], then [[10]]", 10), ("[[0]]", None), ("[[11]]", None), ("[[1]] [[0]]", None), ("[5]", None),
    ("[[1.5]]", None), ("", None),
])  # fmt: skip
def test_scores_in_replies(text, score):
    assert parse_score(text) == score

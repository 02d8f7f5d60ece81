"""A proxy between an agent and the server: it cuts answers, and keeps what became of every request."""

import hashlib, http.client, json, threading, time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Headers of one connection, which are not passed on.
HOP = {"connection", "keep-alive", "transfer-encoding", "host", "te", "trailer", "content-length"}
OLLAMA = ("/api/chat", "/api/generate")
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
UPGRADE_REFUSED = 426


@dataclass
class Seen:
    """One request, and how it was answered."""

    method: str
    path: str
    asked: str  # a digest of what was asked, but for the length of the answer
    status: int = 0
    upgrade: bool = False
    finish: str = ""  # why the answer ended, in the dialect's word; "" where no end was seen
    input: int = 0
    cached: int = 0
    output: int = 0
    calls: int = 0
    error: str = ""
    left: bool = False  # the agent closed its side first
    seconds: float = 0

    @property
    def refused(self):
        return self.status >= 400 and not (self.status == UPGRADE_REFUSED and self.upgrade)

    @property
    def cut(self):
        return self.finish in ("length", "max_tokens", "incomplete")


def shorten(path, body, most):
    """The body with an answer of at most `most` tokens, and a digest of all else."""
    try:
        asked = json.loads(body)
    except ValueError:
        return body, hashlib.sha256(body).hexdigest()
    if not isinstance(asked, dict):
        return body, hashlib.sha256(body).hexdigest()
    rest = {name: value for name, value in asked.items() if name not in LIMITS}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    name = path.partition("?")[0]
    usual = {"/v1/chat/completions": "max_tokens", "/v1/responses": "max_output_tokens", "/v1/messages": "max_tokens"}
    if name in OLLAMA:
        options = asked.setdefault("options", {})
        options["num_predict"] = min(options.get("num_predict") or most, most)
        return json.dumps(asked).encode(), digest
    if name not in usual:
        return body, digest
    given = [limit for limit in LIMITS if asked.get(limit) is not None] or [usual[name]]
    for limit in given:
        asked[limit] = min(asked.get(limit) or most, most)
    thinking = asked.get("thinking")
    if isinstance(thinking, dict) and "budget_tokens" in thinking:
        thinking["budget_tokens"] = min(thinking["budget_tokens"], most)
    return json.dumps(asked).encode(), digest


def compel(path, body):
    """The body of a request that offers tools, whose answer must call one; else nothing."""
    asked = json.loads(body) if body.startswith(b"{") else {}
    if not asked.get("tools"):
        return None
    asked["tool_choice"] = {"type": "any"} if path.startswith("/v1/messages") else "required"
    return json.dumps(asked).encode()


def usage(seen, told):
    details = told.get("prompt_tokens_details") or told.get("input_tokens_details") or {}
    cached = told.get("cache_read_input_tokens", details.get("cached_tokens", 0)) or 0
    total = told.get("prompt_tokens", told.get("input_tokens", 0)) or 0
    if "cache_read_input_tokens" in told:
        total += cached + (told.get("cache_creation_input_tokens") or 0)
    seen.input, seen.cached = max(seen.input, total), max(seen.cached, cached)
    seen.output = max(seen.output, told.get("completion_tokens", told.get("output_tokens", 0)) or 0)


def event(seen, data):
    """What one event of any dialect, or a whole answer, says of how the answer ended."""
    kind = data.get("type", "")
    if data.get("error") or kind == "error":
        seen.error = json.dumps(data)[:300]
    answer = data.get("response") or data
    if isinstance(answer.get("usage") or data.get("message", {}).get("usage"), dict):
        usage(seen, answer.get("usage") or data["message"]["usage"])
    for choice in data.get("choices") or []:
        seen.finish = choice.get("finish_reason") or seen.finish
        for call in (choice.get("delta") or choice.get("message") or {}).get("tool_calls") or []:
            seen.calls += "id" in call
    if kind in ("response.completed", "response.incomplete") or data.get("object") == "response":
        seen.finish = answer["status"]
        seen.calls += sum(item["type"].endswith("_call") for item in answer["output"])
    if kind == "response.failed":
        seen.error = json.dumps(answer.get("error"))[:300]
    if kind in ("message_delta", "message"):
        seen.finish = (data.get("delta") or data).get("stop_reason") or seen.finish
    if kind == "message":
        seen.calls += sum(block["type"] == "tool_use" for block in data["content"])
    seen.calls += kind == "content_block_start" and data["content_block"]["type"] == "tool_use"
    if "done" in data:  # Ollama's
        seen.calls += len((data.get("message") or {}).get("tool_calls") or [])
        seen.finish = data.get("done_reason") or seen.finish
        seen.input, seen.output = data.get("prompt_eval_count", seen.input), data.get("eval_count", seen.output)


def ending(seen, text):
    """Reads a whole answer, a stream's or not."""
    if seen.status >= 400:
        seen.error = text[:300] if seen.refused else ""
        return
    lines = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
    name = seen.path.partition("?")[0]
    pieces = text.splitlines() if name in OLLAMA else [line for line in lines if line != "[DONE]"]
    try:
        for data in pieces or [text]:
            event(seen, json.loads(data))
    except (ValueError, KeyError, AttributeError) as error:
        seen.error = f"not well-formed: {error!r}"
    last = lines[-1] if lines else ""
    if lines and not any(word in last for word in ("[DONE]", "message_stop", "response.completed", "response.incomplete")):
        seen.error = seen.error or f"the stream ends with {last[:200]}"
    if not seen.finish and name in ("/v1/chat/completions", "/v1/responses", "/v1/messages", *OLLAMA):
        seen.error = seen.error or "the answer does not say why it ended"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def body(self):
        if "chunked" not in (self.headers.get("transfer-encoding") or ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def upstream(self, body):
        server = http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=900)
        upgrade = {"connection", "upgrade"} if self.headers.get("upgrade") else set()
        server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        server.putheader("host", f"127.0.0.1:{self.server.upstream}")
        for name, value in self.headers.items():
            if name.lower() not in HOP - upgrade and name.lower() != "content-length":
                server.putheader(name, value)
        if body or self.command == "POST":
            server.putheader("content-length", str(len(body)))
        server.endheaders(body or None)
        return server

    def pass_on(self):
        start, body = time.monotonic(), self.body()
        body, digest = shorten(self.path, body, self.server.most)
        compelled = compel(self.path, body) if self.server.call else None
        if compelled:
            body, self.server.call = compelled, False
        seen = Seen(self.command, self.path, digest, upgrade=bool(self.headers.get("upgrade")))
        self.server.seen.append(seen)
        server, text = self.upstream(body), b""
        try:
            answer = server.getresponse()
            seen.status = answer.status
            chunks = iter(lambda: answer.read1(65536), b"")
        except OSError as error:
            seen.status, seen.error, chunks = 599, f"{error!r}", iter(())
            self.send_error(502)
        else:
            self.head(seen, answer)
        try:
            for chunk in chunks:
                text += chunk
                self.wfile.write(chunk)
                self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            seen.left = True
        except (OSError, http.client.HTTPException) as error:
            seen.error = f"the answer broke off: {error!r}"
        server.close()
        seen.seconds = time.monotonic() - start
        if not seen.left and not seen.error and self.command != "HEAD":
            ending(seen, text.decode(errors="replace"))
        self.server.keep(self, body, text)

    def head(self, seen, answer):
        try:
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP:
                    self.send_header(name, value)
            self.send_header("connection", "close")
            self.end_headers()
        except (BrokenPipeError, ConnectionResetError):
            seen.left = True
        self.close_connection = True

    do_GET = do_POST = do_HEAD = do_DELETE = do_PUT = pass_on


class Proxy(ThreadingHTTPServer):
    """Listens on `port` of loopback and passes on to `upstream`; `seen` is what came since it was last emptied."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port, upstream, most, call=False):
        self.upstream, self.most, self.calls, self.folder, self.count = upstream, most, call, None, 0
        self.empty()
        super().__init__(("127.0.0.1", port), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def empty(self):
        """For the next try."""
        self.seen, self.call = [], self.calls

    def keep(self, request, body, text):
        """Requests and answers as files, for whoever looks for what went wrong."""
        if self.folder:
            self.count += 1
            name = f"{self.count:04}"
            (self.folder / f"{name}.request").write_bytes(f"{request.command} {request.path}\n".encode() + body)
            (self.folder / f"{name}.answer").write_bytes(text)

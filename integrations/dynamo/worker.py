#!/usr/bin/env python3
"""tokenmill as a worker of NVIDIA Dynamo.

    python worker.py MODEL --card FOLDER [-- flags of `tokenmill serve`]

Starts `tokenmill serve MODEL` on a port of this machine and registers it: Dynamo's frontend sends it tokens and gets
tokens, its KV router hears the events of the prompt cache, and it says how much of the cache is in use. FOLDER is a
Hugging Face folder of the same model (config.json, tokenizer.json, tokenizer_config.json), which frontends tokenise by.
SIGTERM drains: nothing new is taken and what is open ends. If tokenmill itself ends, so does the worker.

Discovery, planes and addresses are Dynamo's own: DYN_DISCOVERY_BACKEND, DYN_REQUEST_PLANE and so on.
"""

import argparse
import asyncio
import ctypes
import json
import logging
import os
import signal
import socket
import sys

import aiohttp
from dynamo.common.backend import EngineConfig, LLMEngine, LlmRegistration, WorkerConfig
from dynamo.common.backend.publisher import ComponentSnapshot, ZmqSource
from dynamo.common.backend.run import run
from dynamo.llm import exceptions

log = logging.getLogger("tokenmill")

# How Dynamo calls what to sample by, and how tokenmill does.
SAMPLING = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "seed": "seed",
    "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
}
# Seconds between two words on how full the cache is.
EVERY_S = 1.0


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def end_with_parent():
    """The server drains when its worker is gone, even by SIGKILL (Linux)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def asked(request):
    """A request of Dynamo's as one of tokenmill's."""
    body = {"prompt": request["token_ids"], "stream": True, "stream_options": {"include_usage": True},
            "return_token_ids": True}
    sampling, stop = request.get("sampling_options") or {}, request.get("stop_conditions") or {}
    if (sampling.get("n") or 1) != 1:
        raise exceptions.InvalidArgument("n: one answer a request")
    for theirs, ours in SAMPLING.items():
        if sampling.get(theirs) is not None:
            body[ours] = sampling[theirs]
    # (Texts that end an answer are the frontend's: it sees the text.)
    ends = (stop.get("stop_token_ids") or []) + (stop.get("stop_token_ids_hidden") or [])
    if ends:
        body["stop_token_ids"] = ends
    for name in ("max_tokens", "min_tokens", "ignore_eos"):
        if stop.get(name) is not None:
            body[name] = stop[name]
    # Without a number, vLLM and Dynamo mean as many as the context holds.
    body.setdefault("max_tokens", 1 << 20)
    return body


async def refused(reply):
    """Raises what tokenmill says instead of an answer, in Dynamo's classes."""
    if reply.status == 200:
        return
    said = f"tokenmill answered {reply.status}: {(await reply.text())[:500]}"
    if reply.status in (429, 503):
        raise exceptions.CannotConnect(said)  # it drains, or is full: another may do it
    raise (exceptions.InvalidArgument if reply.status < 500 else exceptions.Unknown)(said)


async def pieces(reply):
    """An answer's chunks as Dynamo has them."""
    finish = usage = None
    async for line in reply.content:
        if not line.startswith(b"data: "):
            continue
        if line.strip() == b"data: [DONE]":
            yield {"token_ids": [], "index": 0, "finish_reason": finish, "completion_usage": {
                name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}}
            return
        chunk = json.loads(line[6:])
        if "error" in chunk:
            raise exceptions.StreamIncomplete(chunk["error"]["message"])
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            finish = choice["finish_reason"] or finish
            if choice.get("token_ids"):
                yield {"token_ids": choice["token_ids"], "index": 0}
    raise exceptions.StreamIncomplete("tokenmill's answer broke off")


class Tokenmill(LLMEngine):
    def __init__(self, args):
        self.args, self.server, self.session = args, None, None
        self.port, self.events = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.total_blocks, self.snapshots, self.tasks, self.open = 0, None, [], {}

    @classmethod
    async def from_args(cls, argv=None):
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("model", help="as tokenmill knows it")
        parser.add_argument("--card", required=True, help="its Hugging Face folder")
        parser.add_argument("--name", help="what clients call it [default: the model]")
        parser.add_argument("--tokenmill", default="tokenmill", help="the program")
        parser.add_argument("--namespace", default="dynamo")
        argv = sys.argv[1:] if argv is None else argv
        end = argv.index("--") if "--" in argv else len(argv)
        args = parser.parse_args(argv[:end])
        args.flags = argv[end + 1:]
        name = args.name = args.name or args.model
        config = WorkerConfig(
            namespace=args.namespace, component="tokenmill", endpoint="generate",
            model_name=args.card, served_model_name=name,
            discovery_backend=os.environ.get("DYN_DISCOVERY_BACKEND", "etcd"),
            request_plane=os.environ.get("DYN_REQUEST_PLANE", "tcp"),
            event_plane=os.environ.get("DYN_EVENT_PLANE", "zmq"))
        return cls(args), config

    async def start(self, worker_id):
        command = [self.args.tokenmill, "serve", self.args.model, "--port", str(self.port),
                   "--served-model-name", self.args.name, "--kv-events", f"tcp://127.0.0.1:{self.events}",
                   *self.args.flags]
        # (Of a group of its own: a signal to the worker is the worker's to pass on.)
        self.server = await asyncio.create_subprocess_exec(
            *command, start_new_session=True, preexec_fn=end_with_parent)
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        while True:
            if self.server.returncode is not None:
                raise RuntimeError(f"tokenmill ended with {self.server.returncode}")
            try:
                async with self.session.get(f"{self.url}/server_info") as reply:
                    info = await reply.json()
                break
            except aiohttp.ClientError:
                await asyncio.sleep(0.1)
        print(f"tokenmill {info['version']} at {self.url}, process {self.server.pid}", flush=True)
        self.total_blocks = info["num_blocks"]
        self.tasks = [asyncio.create_task(self.watch()), asyncio.create_task(self.tell_load())]
        llm = LlmRegistration(
            context_length=info["max_model_len"], kv_cache_block_size=info["block_size"],
            total_kv_blocks=info["num_blocks"], max_num_seqs=info["max_running_requests"])
        return EngineConfig(model=self.args.card, served_model_name=self.args.name, llm=llm)

    async def watch(self):
        """A worker without its server takes leave."""
        code = await self.server.wait()
        log.error("tokenmill ended with %s: the worker ends too", code)
        for reply in list(self.open.values()):
            reply.close()
        os.kill(os.getpid(), signal.SIGTERM)

    async def kv_event_sources(self):
        return [ZmqSource(endpoint=f"tcp://127.0.0.1:{self.events}")]

    def component_metrics_dp_ranks(self):
        return [0]

    def attach_snapshot_publisher(self, publisher):
        self.snapshots = publisher  # (called from a thread of Dynamo's, which has no event loop)

    async def tell_load(self):
        while True:
            await asyncio.sleep(EVERY_S)
            if self.snapshots is None:
                continue
            try:
                async with self.session.get(f"{self.url}/load") as reply:
                    usage = (await reply.json())["models"][self.args.name]["kv_cache_usage"]
                self.snapshots.publish(0, ComponentSnapshot(
                    kv_used_blocks=round(usage * self.total_blocks), kv_total_blocks=self.total_blocks,
                    gpu_cache_usage=usage, dp_rank=0))
            except (aiohttp.ClientError, KeyError):
                pass  # it ends, or its model comes back

    async def generate(self, request, context):
        headers = {"x-request-id": context.id()}
        trace, span = getattr(context, "trace_id", None), getattr(context, "span_id", None)
        if trace and span:
            headers["traceparent"] = f"00-{trace}-{span}-01"
        try:
            async with self.session.post(f"{self.url}/v1/completions", json=asked(request), headers=headers) as reply:
                await refused(reply)
                self.open[context.id()] = reply
                async for piece in pieces(reply):
                    yield piece
        except aiohttp.ClientError as error:
            # (What the frontend takes to another worker: `--migration-limit`.)
            raise exceptions.Disconnected(f"tokenmill went away: {error}") from error
        finally:
            self.open.pop(context.id(), None)

    async def abort(self, context):
        reply = self.open.get(context.id())
        if reply is not None:
            reply.close()  # tokenmill ends what nobody reads

    async def cleanup(self):
        for task in self.tasks:
            task.cancel()
        self.tasks = []
        if self.server is not None and self.server.returncode is None:
            try:
                async with self.session.post(f"{self.url}/drain", json={"drain": True}) as reply:
                    await reply.read()
                await self.server.wait()
            except aiohttp.ClientError:
                self.server.kill()
        if self.session is not None:
            await self.session.close()
        self.session = None


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    run(Tokenmill)

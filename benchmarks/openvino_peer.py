"""OpenVINO GenAI's continuous batching behind the least OpenAI server that the benchmark needs.

It runs in the peer's own environment (openvino-genai and numpy), never in ours:

    python openvino_peer.py --model model.gguf --port 8010 --threads 2 --chunk 256
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import threading
from dataclasses import dataclass, field

import numpy as np
import openvino
import openvino_genai


@dataclass
class Call:
    """One streaming completion."""

    tokens: asyncio.Queue[list[int]]
    handle: object = None
    gone: threading.Event = field(default_factory=threading.Event)


class Stepper(threading.Thread):
    """Owns the pipeline: adds requests between steps and hands out what each step produced."""

    def __init__(self, pipeline: object, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(daemon=True)
        self._pipeline, self._loop = pipeline, loop
        self._wake = threading.Condition()
        self._waiting: list[tuple[Call, list[int], int]] = []
        self._calls: list[Call] = []
        self._ids = itertools.count()

    def submit(self, call: Call, prompt: list[int], max_tokens: int) -> None:
        with self._wake:
            self._waiting.append((call, prompt, max_tokens))
            self._wake.notify()

    def run(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._calls:
                    self._wake.wait()
                arrivals, self._waiting = self._waiting, []
            for call, prompt, max_tokens in arrivals:
                config = openvino_genai.GenerationConfig()
                config.max_new_tokens, config.ignore_eos, config.do_sample = max_tokens, True, False
                ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
                call.handle = self._pipeline.add_request(next(self._ids), ids, config)
                self._calls.append(call)
            self._step()

    def _step(self) -> None:
        self._pipeline.step()
        for call in [*self._calls]:
            handle = call.handle
            if call.gone.is_set():
                handle.stop() if hasattr(handle, "stop") else handle.drop()
                self._calls.remove(call)
                continue
            while handle.can_read():
                for output in handle.read().values():
                    ids = list(output.generated_ids)
                    self._loop.call_soon_threadsafe(call.tokens.put_nowait, ids)
            if handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
                self._loop.call_soon_threadsafe(call.tokens.put_nowait, [])
                self._calls.remove(call)


class Front:
    """Answers GET /health, GET /v1/models and streaming POST /v1/completions by token ids."""

    def __init__(self, stepper: Stepper, tokenizer: object) -> None:
        self._stepper, self._tokenizer = stepper, tokenizer

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            if head.startswith("post"):
                length = int(head.partition("content-length:")[2].split("\r\n")[0])
                await self._complete(json.loads(await reader.readexactly(length)), reader, writer)
            else:
                body = json.dumps({"data": [{"id": "openvino"}]}).encode()
                lines = (
                    f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(lines.encode() + body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _complete(
        self, body: dict, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        call, count = Call(asyncio.Queue()), 0
        hangup = asyncio.create_task(reader.read(1))
        hangup.add_done_callback(lambda _: call.gone.set())
        self._stepper.submit(call, body["prompt"], body["max_tokens"])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        while ids := await call.tokens.get():
            count += len(ids)
            # A token without visible text would hide that it was delivered.
            text = self._tokenizer.decode(ids) or "\ufffd"
            writer.write(_event({"choices": [{"text": text, "finish_reason": None}]}))
            await writer.drain()
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": count}
        writer.write(_event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        await writer.drain()
        hangup.cancel()


def _event(payload: dict) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


async def serve(options: argparse.Namespace) -> None:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = options.chunk
    scheduler.dynamic_split_fuse = True
    scheduler.max_num_seqs = 32
    scheduler.cache_size = options.cache_gib
    properties = {"INFERENCE_NUM_THREADS": options.threads}
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        options.model, scheduler, "CPU", properties
    )
    stepper = Stepper(pipeline, asyncio.get_running_loop())
    stepper.start()
    front = Front(stepper, pipeline.get_tokenizer())
    server = await asyncio.start_server(front.handle, "127.0.0.1", options.port)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--chunk", type=int, default=256, help="tokens per step, at most")
    parser.add_argument("--cache-gib", type=int, default=2)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()

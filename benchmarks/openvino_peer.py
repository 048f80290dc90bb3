"""OpenVINO GenAI's continuous batching behind the least OpenAI server that the benchmark needs.

It runs in the peer's own environment (openvino-genai and numpy), never in ours:

    python openvino_peer.py --model model.gguf --port 8010 --threads 2 --chunk 256
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json

import numpy as np
import openvino
import openvino_genai


class Call:
    """One streaming completion; text is written as soon as a step has produced it."""

    def __init__(self, body: dict, writer: asyncio.StreamWriter) -> None:
        self.prompt, self.max_tokens = body["prompt"], body["max_tokens"]
        self.handle, self.count, self.gone = None, 0, False
        self.done = asyncio.Event()
        self._writer = writer

    def deliver(self, ids: list[int], text: str) -> None:
        self.count += len(ids)
        # A token without visible text would hide that it was delivered.
        self._writer.write(_event({"choices": [{"text": text or "\ufffd"}]}))

    def end(self) -> None:
        usage = {"prompt_tokens": len(self.prompt), "completion_tokens": self.count}
        self._writer.write(_event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        self.done.set()


class Stepper:
    """Owns the pipeline: adds requests between steps and hands out what each step produced.

    A step holds the interpreter lock, so steps and connections share one thread: on another one
    the connections would hardly ever run.
    """

    def __init__(self, pipeline: object, lookup_tokens: int) -> None:
        self._pipeline, self._tokenizer = pipeline, pipeline.get_tokenizer()
        self._lookup_tokens = lookup_tokens
        self._waiting: list[Call] = []
        self._calls: list[Call] = []
        self._ids = itertools.count()
        self._work = asyncio.Event()

    def submit(self, call: Call) -> None:
        self._waiting.append(call)
        self._work.set()

    async def run(self) -> None:
        while True:
            # Reading one request takes a few turns of the event loop.
            for _ in range(5):
                await asyncio.sleep(0)
            if not self._waiting and not self._calls:
                self._work.clear()
                await self._work.wait()
                continue
            self._add()
            self._pipeline.step()
            self._calls = [call for call in self._calls if self._advance(call)]

    def _add(self) -> None:
        for call in self._waiting:
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens = call.max_tokens
            config.ignore_eos, config.do_sample = True, False
            if self._lookup_tokens:
                config.num_assistant_tokens, config.max_ngram_size = self._lookup_tokens, 3
            ids = openvino.Tensor(np.array([call.prompt], dtype=np.int64))
            call.handle = self._pipeline.add_request(next(self._ids), ids, config)
            self._calls.append(call)
        self._waiting.clear()

    def _advance(self, call: Call) -> bool:
        """Hand out new tokens; whether the call goes on."""
        if call.gone:
            call.handle.stop()
            return False
        while call.handle.can_read():
            for output in call.handle.read().values():
                ids = list(output.generated_ids)
                call.deliver(ids, self._tokenizer.decode(ids))
        if call.handle.get_status() == openvino_genai.GenerationStatus.RUNNING:
            return True
        call.end()
        return False


class Front:
    """Answers GET /health, GET /v1/models and streaming POST /v1/completions by token ids."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            if head.startswith("post"):
                length = int(head.partition("content-length:")[2].split("\r\n")[0])
                await self._complete(json.loads(await reader.readexactly(length)), reader, writer)
            else:
                body = json.dumps({"data": [{"id": "openvino"}]}).encode()
                status = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n"
                writer.write(status.encode() + b"Connection: close\r\n\r\n" + body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _complete(
        self, body: dict, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        call = Call(body, writer)
        self._stepper.submit(call)
        ended = asyncio.create_task(call.done.wait())
        hangup = asyncio.create_task(reader.read(1))
        await asyncio.wait({ended, hangup}, return_when=asyncio.FIRST_COMPLETED)
        call.gone = not call.done.is_set()
        for task in (ended, hangup):
            task.cancel()


def _event(payload: dict) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


async def serve(options: argparse.Namespace) -> None:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = options.chunk
    scheduler.dynamic_split_fuse = True
    scheduler.max_num_seqs = 32
    scheduler.cache_size = options.cache_gib
    properties = {"INFERENCE_NUM_THREADS": options.threads}
    if options.lookup:
        properties["prompt_lookup"] = True
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        options.model, scheduler, "CPU", properties
    )
    stepper = Stepper(pipeline, options.lookup)
    front = Front(stepper)
    server = await asyncio.start_server(front.handle, "127.0.0.1", options.port)
    async with server:
        await stepper.run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--chunk", type=int, default=256, help="tokens per step, at most")
    parser.add_argument("--cache-gib", type=int, default=2)
    parser.add_argument(
        "--lookup", type=int, default=0, help="prompt lookup: proposals per step (0: none)"
    )
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Who waits for whom on a running server: light users beside a greedy one, and an overload that passes.

    tokenmill serve MODEL --ctx 1024 --slots 32
    python3 bench/fairness.py [URL] --part fair [--seconds 60] [--streams 256]
    tokenmill serve MODEL --ctx 1024 --slots 32 --max-wait 2
    python3 bench/fairness.py [URL] --part overload

Capacity is measured first: requests a second with 32 at a time. Fair: 63 users offer 30 % of it, alone and beside one
user who keeps 256 requests open; time to first token of the light ones. Overload: users offer 30 % of capacity, then
four times capacity, then 30 % again; how fast a refusal comes, and the time to first token before and from 5 s after.
Users are told apart by the field `user`. Prompts are token ids, drafts are off. Standard library only."""

import argparse, asyncio, collections, json, random, statistics, time, urllib.parse

Reply = collections.namedtuple("Reply", "status began first ended")


class Server:
    def __init__(self, url, prompt, answer):
        parts = urllib.parse.urlparse(url)
        self.host, self.port, self.prompt, self.answer = parts.hostname, parts.port, prompt, answer
        self.rng = random.Random(1)

    async def ask(self, user):
        """A request of a user: its status and times, seconds from asking."""
        body = {"prompt": [self.rng.randrange(100, 5000) for _ in range(self.prompt)], "user": user,
                "max_tokens": self.answer, "temperature": 0, "ignore_eos": True, "stream": True, "draft": "none"}
        data = json.dumps(body).encode()
        start, first, status = time.perf_counter(), None, 0
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            head = f"POST /v1/completions HTTP/1.1\r\nhost: {self.host}\r\nconnection: close\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
            writer.write(head.encode() + data)
            status = int((await reader.readline()).split()[1])
            while line := await reader.readline():
                if first is None and line.startswith(b"data: {"):
                    first = time.perf_counter() - start
            return Reply(status, start, first, time.perf_counter() - start)
        finally:
            writer.close()

    async def offer(self, rate, seconds, users):
        """Requests that arrive independently; their replies."""
        tasks, end = [], time.perf_counter() + seconds
        while True:
            await asyncio.sleep(self.rng.expovariate(rate))
            if time.perf_counter() > end:
                return await asyncio.gather(*tasks)
            tasks.append(asyncio.create_task(self.ask(self.rng.choice(users))))

    async def keep(self, user, answers):
        """Requests of one user, one after the other; notes those that were answered."""
        while True:
            reply = await self.ask(user)
            if reply.status == 200:
                answers.append(reply)
            else:
                await asyncio.sleep(1)

    async def capacity(self, at_once=32, each=3):
        async def row(i):
            for _ in range(each):
                await self.ask(f"warm{i}")
        start = time.perf_counter()
        await asyncio.gather(*map(row, range(at_once)))
        return at_once * each / (time.perf_counter() - start)


def ttft(replies):
    values = sorted(1e3 * r.first for r in replies if r.status == 200 and r.first)
    if not values:
        raise SystemExit(f"none of {len(replies)} requests was answered: {collections.Counter(r.status for r in replies)}")
    return statistics.median(values), values[(len(values) * 95 + 99) // 100 - 1], len(values)


LIGHT = [f"light{i}" for i in range(63)]


async def fair(server, capacity, seconds, streams):
    idle = ttft(await server.offer(0.3 * capacity, seconds, LIGHT))
    answers = []
    greedy = [asyncio.create_task(server.keep("greedy", answers)) for _ in range(streams)]
    await asyncio.sleep(10)
    busy = ttft(await server.offer(0.3 * capacity, seconds, LIGHT))
    for task in greedy:
        task.cancel()
    await asyncio.gather(*greedy, return_exceptions=True)
    print(f"light users alone: TTFT p50 {idle[0]:.0f} p95 {idle[1]:.0f} ms ({idle[2]} requests); beside {streams} greedy streams: "
          f"p50 {busy[0]:.0f} p95 {busy[1]:.0f} ms ({busy[2]}): {busy[1] / idle[1]:.2f} times; greedy answers {len(answers)}", flush=True)


async def overload(server, capacity, seconds):
    before = ttft(await server.offer(0.3 * capacity, seconds, LIGHT))
    print(f"before: TTFT p50 {before[0]:.0f} p95 {before[1]:.0f} ms ({before[2]} requests)", flush=True)
    flood = asyncio.create_task(server.offer(4 * capacity, 20, LIGHT))
    await asyncio.sleep(20)
    end = time.perf_counter()
    late = await server.offer(0.3 * capacity, 5 + seconds, LIGHT)
    flood = await flood
    after = ttft([r for r in late if r.began > end + 5])
    refused = sorted(1e3 * r.ended for r in flood if r.status == 429)
    if not refused:
        raise SystemExit("nothing was refused: start the server with --max-wait 2")
    print(f"overload: {len(flood)} requests in 20 s, {len(refused)} refused, in p50 {refused[len(refused) // 2]:.0f} "
          f"p95 {refused[len(refused) * 95 // 100]:.0f} max {refused[-1]:.0f} ms; "
          f"TTFT p50 before {before[0]:.0f} ({before[2]}), from 5 s after {after[0]:.0f} ms ({after[2]})", flush=True)


async def main():
    p = argparse.ArgumentParser()
    p.add_argument("url", nargs="?", default="http://127.0.0.1:8080")
    p.add_argument("--prompt", type=int, default=256)
    p.add_argument("--answer", type=int, default=128)
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--streams", type=int, default=256)
    p.add_argument("--part", choices=["fair", "overload"], required=True)
    args = p.parse_args()
    server = Server(args.url, args.prompt, args.answer)
    capacity = await server.capacity()
    print(f"capacity: {capacity:.2f} requests a second of {args.prompt} + {args.answer} tokens", flush=True)
    if args.part == "fair":
        await fair(server, capacity, args.seconds, args.streams)
    else:
        await overload(server, capacity, args.seconds)


asyncio.run(main())

// pg-boss, fetching and completing in large batches. It polls: its latency is its polling interval's.
import PgBoss from "pg-boss";
import { main, payload, POSTGRES, stamp } from "./program.mjs";

const BATCH = 500;
const SHORTEST_POLL = 0.5;
let boss;

const connect = async () => {
  if (boss === undefined) {
    boss = new PgBoss({ connectionString: POSTGRES, supervise: false, schedule: false });
    boss.on("error", console.error);
    await boss.start();
  }
};

await main({
  connect,
  async prepare() {
    await connect();
    await boss.createQueue("order");
  },
  async fill(first, count) {
    await connect();
    await boss.insert(Array.from({ length: count }, (_, index) => ({ name: "order", data: payload(first + index) })));
  },
  async enqueue(number) {
    await connect();
    await boss.send("order", payload(number));
  },
  // Its own `work` pauses between fetches for half a second at least; fetching by hand is the fast way.
  async work() {
    for (;;) {
      const jobs = await boss.fetch("order", { batchSize: BATCH });
      for (const job of jobs) stamp(job.data.number);
      if (jobs.length > 0) await boss.complete("order", jobs.map((job) => job.id));
      else await new Promise((resolve) => setTimeout(resolve, SHORTEST_POLL * 1000));
    }
  },
  async close() {
    await boss?.stop({ graceful: false });
  },
});

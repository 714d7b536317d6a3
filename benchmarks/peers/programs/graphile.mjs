// graphile-worker with a local queue, and completions in batches.
import { makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";
import { main, payload, POSTGRES, stamp } from "./program.mjs";

const AT_ONCE = 24;
let pool, utils;

const connect = async () => {
  pool ??= new pg.Pool({ connectionString: POSTGRES, max: AT_ONCE });
  utils ??= await makeWorkerUtils({ pgPool: pool });
};

await main({
  connect,
  async prepare() {
    await connect();
    await utils.migrate();
  },
  async fill(first, count) {
    await connect();
    const jobs = Array.from({ length: count }, (_, index) => ({ identifier: "order", payload: payload(first + index) }));
    await utils.addJobs(jobs);
  },
  async enqueue(number) {
    await connect();
    await utils.addJob("order", payload(number));
  },
  async work() {
    await run({
      pgPool: pool,
      noHandleSignals: true,
      taskList: { order: async (given) => stamp(given.number) },
      preset: {
        worker: {
          concurrentJobs: AT_ONCE,
          localQueue: { size: 500, refetchDelay: { durationMs: 0 } },
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
          pollInterval: 2000,
        },
      },
    });
  },
  async close() {
    await utils?.release();
    await pool?.end();
  },
});

// What the peers' programs in Node.js share: their commands, and a ledger of when handlers were called.
import { appendFileSync } from "node:fs";
import { createInterface } from "node:readline";

export const POSTGRES = process.env.BENCH_POSTGRES;
const CHUNK = 1000;

export const payload = (number) => ({ number, text: "x".repeat(270) });

const lines = [];

export function stamp(number) {
  lines.push(`${number} ${process.hrtime.bigint()}\n`);
}

function keepLedger() {
  setInterval(() => {
    if (lines.length > 0) appendFileSync(process.env.BENCH_LEDGER, lines.splice(0).join(""));
  }, 20);
}

const seconds = () => Number(process.hrtime.bigint()) / 1e9;
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// A program has prepare(), fill(first, count), enqueue(number), work() and close().
export async function main(program) {
  const command = process.argv[2];
  const count = Number(process.argv[3] ?? 1);
  if (command === "prepare") {
    await program.prepare();
  } else if (command === "fill") {
    for (let first = 0; first < count; first += CHUNK) await program.fill(first, Math.min(CHUNK, count - first));
  } else if (command === "enqueue") {
    await program.enqueue(-1); // connects
    const began = seconds();
    for (let number = 0; number < count; number++) await program.enqueue(number);
    console.log(seconds() - began);
  } else if (command === "trickle") {
    const said = [];
    for (let number = 0; number < count; number++) {
      await pause(20 + Math.random() * 30);
      await program.enqueue(number);
      said.push(`${number} ${process.hrtime.bigint()}`);
    }
    console.log(said.join("\n"));
  } else if (command === "work") {
    keepLedger();
    await program.connect();
    console.log("ready");
    await new Promise((resolve) => createInterface({ input: process.stdin }).once("line", resolve));
    process.on("SIGTERM", () => process.exit(0));
    await program.work();
    return;
  }
  await program.close();
  process.exit(0);
}

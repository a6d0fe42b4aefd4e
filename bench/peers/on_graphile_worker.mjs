// Graphile Worker in the race: addJobs of 10,000, a local queue of 500, completions batched without delay.

import { makeWorkerUtils, run, Logger } from 'graphile-worker'
import pg from 'pg'
import * as track from './track.mjs'

const logger = new Logger(() => (level, message) => { if (level === 'error') console.error(message) })
const pool = () => {
  const made = new pg.Pool({ max: 10 })
  made.on('error', console.error)
  made.on('connect', client => client.on('error', console.error))
  return made
}
const utils = () => makeWorkerUtils({ pgPool: pool(), logger })

const taskList = {
  nothing: async () => track.ran(),
  began: async ({ sent }) => track.began(sent),
  hold: async () => track.hold()
}

async function setup () {
  await (await utils()).migrate()
}

async function push (count) {
  const rows = track.rows(count)
  const { addJobs } = await utils()
  await track.timed(async () => {
    for (const chunk of track.chunks(rows, 10_000)) {
      await addJobs(chunk.map(payload => ({ identifier: 'nothing', payload })))
    }
  })
}

async function trickle (count, rate) {
  const { addJob } = await utils()
  await track.paced(count, rate, () => addJob('began', { sent: track.now() }))
}

async function hold () {
  const { addJob } = await utils()
  await addJob('hold', {})
}

async function work () {
  const soon = track.HASTY ? { minResetLockedInterval: 500, maxResetLockedInterval: 1000 } : {}
  const preset = {
    worker: {
      concurrentJobs: 24,
      localQueue: { size: 500 },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
      ...soon
    }
  }
  await track.ready()
  const runner = await run({ pgPool: pool(), taskList, preset, logger })
  await runner.promise
}

// Its locks last four hours, which is not a setting: as if they were over.
async function rescue () {
  await pool().query("update graphile_worker._private_jobs set locked_at = now() - interval '5 hours'")
}

await track.run({ setup, push, trickle, hold, work, rescue })

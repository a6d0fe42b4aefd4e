// Graphile Worker in the race: addJobs or SQL's add_jobs, a local queue, completions batched without delay.

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

// Its SQL function, as an application calls it that does not need the rows of the jobs back.
const ADD_JOBS = `
  select count(*) from graphile_worker.add_jobs(
    array(select json_populate_recordset(null::graphile_worker.job_spec, $1::json))
  )`

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
  const sql = pool()
  await sql.query('select 1')
  const add = track.setting('sql', false) ? jobs => sql.query(ADD_JOBS, [JSON.stringify(jobs)]) : addJobs
  await track.timed(async () => {
    for (const chunk of track.chunks(rows, track.setting('chunk', 10_000))) {
      await add(chunk.map(payload => ({ identifier: 'nothing', payload })))
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
  const delay = track.setting('delay', 0)
  const refetch = delay ? { refetchDelay: { durationMs: delay } } : {}
  const preset = {
    worker: {
      concurrentJobs: track.setting('jobs', 24),
      localQueue: { size: track.setting('size', 500), ...refetch },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
      ...soon
    }
  }
  await track.ready()
  const runner = await run({ pgPool: pool(), taskList, preset, logger })
  await runner.promise
}

// Its locks last four hours, which cannot be set. This ends them early.
async function rescue () {
  await pool().query("update graphile_worker._private_jobs set locked_at = now() - interval '5 hours'")
}

await track.run({ setup, push, trickle, hold, work, rescue })

// pg-boss in the race: insert of thousands a call, batches fetched while they are full, LISTEN and NOTIFY.

import { PgBoss } from 'pg-boss'
import * as track from './track.mjs'

const QUEUES = ['nothing', 'began', 'hold']

async function boss (options = {}) {
  const { PGHOST: host, PGPORT: port, PGDATABASE: database, PGUSER: user, PGPASSWORD: password } = process.env
  const made = new PgBoss({ host, port: Number(port), database, user, password, useListenNotify: true, ...options })
  made.on('error', console.error)
  return await made.start()
}

const client = () => boss({ supervise: false, schedule: false })

async function setup () {
  const made = await client()
  for (const name of QUEUES) {
    await made.createQueue(name, { notify: true, ...(track.HASTY ? { expireInSeconds: 5 } : {}) })
  }
}

async function push (count) {
  const rows = track.rows(count)
  const made = await client()
  await track.timed(async () => {
    for (const chunk of track.chunks(rows, track.setting('chunk', 5_000))) {
      await made.insert('nothing', chunk.map(data => ({ data })))
    }
  })
}

async function trickle (count, rate) {
  const made = await client()
  await track.paced(count, rate, () => made.send('began', { sent: track.now() }))
}

async function hold () {
  await (await client()).send('hold', {})
}

async function work () {
  const soon = { superviseIntervalSeconds: 1, monitorIntervalSeconds: 1 }
  await track.ready()
  const made = await boss({ schedule: false, ...(track.HASTY ? soon : {}) })
  const options = {
    batchSize: track.setting('batch', 5_000),
    localConcurrency: track.setting('loops', 1),
    pollingIntervalSeconds: 0.5,
    burstWhenBatchFull: true
  }
  await made.work('nothing', options, async jobs => track.ran(jobs.length))
  await made.work('began', options, async jobs => jobs.forEach(job => track.began(job.data.sent)))
  await made.work('hold', { pollingIntervalSeconds: 0.5 }, async () => track.hold())
}

await track.run({ setup, push, trickle, hold, work })

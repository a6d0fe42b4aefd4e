// Shared by all JavaScript runners of the race, as track.py is by those in Python.

import fs from 'node:fs'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

const LANE = process.env.RACE_LANE ?? '.'
export const HASTY = process.env.RACE_HASTY === '1'
const SETTINGS = JSON.parse(process.env.RACE_SETTINGS ?? '{}')

export const setting = (name, fallback) => SETTINGS[name] ?? fallback

const file = name => path.join(LANE, name)
export const now = () => (performance.timeOrigin + performance.now()) / 1000

export const payload = n => ({ invoice: n, to: `customer-${n}@example.com`, note: 'x'.repeat(50) })
export const rows = count => Array.from({ length: count }, (_, n) => payload(n))

export function * chunks (all, size) {
  for (let n = 0; n < all.length; n += size) yield all.slice(n, n + size)
}

// --- the start

export async function ready () {
  fs.writeFileSync(file(`ready-${process.pid}`), '')
  while (!fs.existsSync(file('go'))) await sleep(1)
}

export async function timed (push) {
  await ready()
  const began = performance.now()
  await push()
  fs.writeFileSync(file('seconds'), String((performance.now() - began) / 1000))
}

export async function paced (count, rate, push) {
  await ready()
  const began = performance.now()
  for (let n = 0; n < count; n++) {
    await sleep(Math.max(0, began + n * 1000 / rate - performance.now()))
    await push()
  }
}

// --- handlers

let count = 0n
let first = 0n
let told = 0n
let tally

export function ran (more = 1) {
  if (count === 0n) {
    first = BigInt(Math.round(now() * 1e6)) * 1000n
    tally = fs.openSync(file(`tally-${process.pid}`), 'w')
    setInterval(tell, 5).unref()
  }
  count += BigInt(more)
}

function tell () {
  if (count === told) return
  const slots = Buffer.alloc(16)
  slots.writeBigUInt64LE(count, 0)
  slots.writeBigUInt64LE(first, 8)
  fs.writeSync(tally, slots, 0, 16, 0)
  told = count
}

export function began (sent) {
  const waited = now() - sent
  fs.appendFileSync(file('waits'), `${waited}\n`)
  ran()
}

export async function hold () {
  fs.appendFileSync(file('told'), `begun ${process.pid}\n`)
  while (!fs.existsSync(file(`release-${process.pid}`)) && !fs.existsSync(file('release'))) await sleep(20)
  fs.appendFileSync(file('told'), `ended ${process.pid}\n`)
}

// --- the commands: setup · push COUNT · work · trickle COUNT RATE · hold · rescue

export async function run (commands) {
  const [name, ...numbers] = process.argv.slice(2)
  await commands[name](...numbers.map(Number))
  if (name !== 'work') process.exit(0)
}

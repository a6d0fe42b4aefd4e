"""Push, claim and settle: the whole life of a task in twenty lines. Run it with a database in PENSTOCK_DSN, or after
`penstock up` in the same directory."""

from penstock import Fibonacci, NewTask, Outcome, Penstock

with Penstock() as app:
    app.init()
    mail = app.create_queue("mail", sla="30s", lease="30s", max_attempts=5, retry=Fibonacci("1m"), exist_ok=True)

    # A subject is unique in its queue: a second push is skipped, and the answer says so.
    mail.push({"to": "ann@example.com"}, subject="welcome:ann")
    report = mail.push_many([NewTask({"to": f"{n}@example.com"}, subject=f"welcome:{n}") for n in range(1000)])
    print(report.counts)

    # The holder of a claim gives its tasks their outcomes. A claim that was lost changes nothing.
    while claim := mail.claim(100, worker="quickstart"):
        outcomes = {
            task.id: Outcome.failed("no such mailbox") if task.payload["to"].startswith("13@") else Outcome.done()
            for task in claim.tasks
        }
        mail.settle(claim, outcomes)

    status = mail.status()
    print(f"{status.totals['done']} done, {status.planned} to be tried again, counters verified: {app.verify().ok}")

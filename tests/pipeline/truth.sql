-- What every column of silver and gold must be, said again in SQL over PostgreSQL's own tables: a view for each table.

create temporary view shaped as
select h.*, q.name as queue,
       coalesce(
           left(btrim(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(
               regexp_replace(regexp_replace(left(split_part(h.error, e'\nTraceback (most recent call last):\n', 1), 4000),
                   '\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d([.,]\d+)?)?(Z|[+-]\d\d:?\d\d)?', '<time>', 'g'),
                   '[[:xdigit:]]{8}(-[[:xdigit:]]{4}){3}-[[:xdigit:]]{12}', '<uuid>', 'g'),
                   '''[^'']*''', '<text>', 'g'), '"[^"]*"', '<text>', 'g'), '0[xX][[:xdigit:]]+', '<hex>', 'g'),
                   '[[:xdigit:]]*\d[[:xdigit:]]*[a-fA-F][[:xdigit:]]{6,}', '<hex>', 'g'),
                   '\d+([.,]\d+)*', '<n>', 'g'), '\s+', ' ', 'g')), 200),
           h.error_class,
           case when h.outcome in ('failed', 'dead', 'expired') then h.outcome end) as error_shape
from penstock.history as h join penstock.queue as q on q.id = h.queue_id;

create temporary view attempts as
select h.id, h.xid, h.queue, h.queue_id, h.task_id, h.created, h.due, h.claimed_at, h.finished_at, h.iteration, h.attempt,
       h.outcome, h.kind, h.worker, h.subject, h.error_class,
       greatest(extract(epoch from h.claimed_at - h.due), 0)::float8 as wait_s,
       extract(epoch from h.finished_at - h.claimed_at)::float8 as run_s,
       extract(epoch from h.claimed_at - h.created)::float8 as age_s,
       extract(epoch from s.sla)::float8 as sla_s,
       h.claimed_at - h.due > s.sla as late,
       case when h.claimed_at - h.due > s.sla then extract(epoch from h.claimed_at - h.due - s.sla)::float8
            when s.sla is not null then 0 end as late_by_s,
       h.outcome in ('done', 'dead', 'revoked') as ended,
       left(encode(sha256(convert_to(coalesce(h.error_class, '') || e'\n' || h.error_shape, 'UTF8')), 'hex'), 12) as fingerprint,
       h.error_shape,
       (h.finished_at at time zone 'UTC')::date as day
from shaped as h
left join lateral (
    select p.sla from penstock.sample as p
    where p.queue_id = h.queue_id and p.at <= h.claimed_at order by p.at desc limit 1) as s on true;

create temporary view samples as
with neighbours as (
    select s.*, lead(s) over (partition by s.queue_id, (s.at at time zone 'UTC')::date order by s.at) as next from penstock.sample as s
), filled as (
    -- Upkeep leaves out samples of an idle queue.
    select g.at, n.queue_id, n.pending, n.oldest_age, n.sla, n.workers, n.totals
    from neighbours as n
    cross join lateral generate_series(n.at, case
        when (n.next).at - n.at between '20 s' and '11 minutes' and n.oldest_age is null and (n.next).oldest_age is null
             and (n.planned, n.pending, n.active, n.done, n.dead, n.cancelled, n.workers) = ((n.next).planned, (n.next).pending,
                 (n.next).active, (n.next).done, (n.next).dead, (n.next).cancelled, (n.next).workers)
             and n.sla is not distinct from (n.next).sla and n.totals = (n.next).totals
        then (n.next).at - interval '10 s' else n.at end, '10 s') as g(at)
)
select q.name as queue, s.*, extract(epoch from s.oldest_age)::float8 as age, extract(epoch from s.sla)::float8 as sla_s,
       date_trunc('minute', s.at, 'UTC') as minute,
       (s.totals->>'pushed')::bigint - lag((s.totals->>'pushed')::bigint) over (partition by s.queue_id order by s.at) as pushed
from filled as s join penstock.queue as q on q.id = s.queue_id;

create temporary view minutes as
with arrived as (
    select queue, date_trunc('minute', created, 'UTC') as minute, count(distinct task_id) as arrivals_seen
    from attempts where iteration = 0 and attempt = 1 group by 1, 2
), started as (
    select queue, date_trunc('minute', claimed_at, 'UTC') as minute, count(*) as starts,
           percentile_cont(array[0.5, 0.95, 0.99]) within group (order by wait_s) as wait,
           count(*) filter (where not late) as kept, count(*) filter (where late) as late, max(sla_s) as sla_s
    from attempts group by 1, 2
), finished as (
    select queue, date_trunc('minute', finished_at, 'UTC') as minute, count(*) as finishes,
           count(*) filter (where outcome in ('failed', 'dead', 'expired')) as failures,
           count(*) filter (where outcome in ('done', 'again', 'dead', 'revoked')) / 60.0::float8 as drain_rate,
           percentile_cont(array[0.5, 0.95, 0.99]) within group (order by run_s) as run
    from attempts group by 1, 2
), observed as (
    select queue, minute, sum(pushed)::bigint as arrivals_sampled, (array_agg(pending order by at desc))[1] as pending,
           max(age) as oldest_age_s, avg(workers)::float8 as workers, count(*) as samples,
           (array_agg(sla_s order by at desc))[1] as sla_s,
           avg((coalesce(age, 0) < 0.6 * sla_s)::int)::float8 as normal,
           avg((coalesce(age, 0) >= 0.6 * sla_s and age < 0.8 * sla_s)::int)::float8 as elevated,
           avg((coalesce(age, 0) >= 0.8 * sla_s and age < 0.9 * sla_s)::int)::float8 as warning,
           avg((coalesce(age, 0) >= 0.9 * sla_s and age < sla_s)::int)::float8 as critical,
           avg((coalesce(age, 0) >= sla_s)::int)::float8 as breach
    from samples group by 1, 2
)
select queue, minute, arrivals_sampled, coalesce(arrivals_seen, 0) as arrivals_seen, coalesce(starts, 0) as starts,
       coalesce(finishes, 0) as finishes, coalesce(failures, 0) as failures, coalesce(drain_rate, 0) as drain_rate,
       pending, oldest_age_s, workers, coalesce(samples, 0) as samples,
       wait[1] as wait_p50, wait[2] as wait_p95, wait[3] as wait_p99, run[1] as run_p50, run[2] as run_p95, run[3] as run_p99,
       coalesce(kept, 0) as kept, coalesce(late, 0) as late, coalesce(o.sla_s, s.sla_s) as sla_s,
       kept::float8 / nullif(kept + late, 0) as compliance, normal, elevated, warning, critical, breach,
       (minute at time zone 'UTC')::date as day
from arrived full join started as s using (queue, minute) full join finished using (queue, minute)
full join observed as o using (queue, minute);

create temporary view breaches as
with pieces as (
    select queue, at as began, at + interval '10 s' as ended, age as worst, 0 as late from samples where age >= sla_s
    union all
    select queue, due + make_interval(secs => sla_s), claimed_at, wait_s, 1 from attempts where late
), ordered as (
    select *, max(ended) over (partition by queue order by began, ended rows between unbounded preceding and 1 preceding) as upto
    from pieces
), numbered as (
    select *, count(*) filter (where upto is null or began > upto + interval '10 s') over (
        partition by queue order by began, ended rows unbounded preceding) as nth
    from ordered
)
select queue, min(began) as began, max(ended) as ended, max(worst) as worst_age_s, sum(late)::bigint as late_tasks
from numbered group by queue, nth;

create temporary view kinds as
select queue, kind, attempt, count(*) as runs, count(*) filter (where outcome in ('done', 'again')) as done,
       count(*) filter (where outcome in ('failed', 'expired')) as failed, count(*) filter (where outcome = 'dead') as dead,
       count(*) filter (where outcome in ('failed', 'expired', 'dead'))::float8
           / nullif(count(*) filter (where outcome in ('done', 'again', 'failed', 'expired', 'dead')), 0) as failure_rate,
       sum(run_s) as run_s_total, day
from attempts group by queue, kind, attempt, day;

create temporary view errors as
select queue, kind, fingerprint, error_shape, error_class, count(*) as runs, count(distinct task_id) as tasks,
       sum(run_s) as run_s_total, min(finished_at) as first_seen, max(finished_at) as last_seen, day
from attempts where fingerprint is not null group by queue, kind, fingerprint, error_shape, error_class, day;

create temporary view chances as
select a.queue, a.kind, a.attempt,
       (select max(b) from unnest(array[0, 1, 10, 60, 300, 900, 3600, 14400, 43200, 86400, 259200, 604800, 2592000]) as b
        where b <= a.age_s)::bigint as age_bucket_s,
       f.fingerprint, count(*) as tries, count(*) filter (where a.outcome in ('done', 'again')) as successes,
       sum(a.run_s) as run_s_total, a.day
from attempts as a
left join lateral (
    select b.fingerprint from attempts as b
    where b.task_id = a.task_id and b.iteration = a.iteration and b.attempt = a.attempt - 1
      and b.outcome in ('failed', 'dead', 'expired') and b.finished_at <= a.claimed_at
    order by b.finished_at desc, b.id desc limit 1) as f on true
where a.outcome in ('done', 'again', 'failed', 'dead', 'expired')
group by 1, 2, 3, 4, 5, a.day;

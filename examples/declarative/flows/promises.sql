-- Per queue and day: how many starts were in time, and how many hours of workers that took.
create materialized view promises_by_day as
select queue, day, sum(kept) as kept, sum(late) as late, try_divide(sum(kept), sum(kept + late)) as share_kept,
       sum(workers) / 60 as worker_hours
from minutes
group by queue, day;

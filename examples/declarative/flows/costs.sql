-- The cost of each error, as a share of the time of all failed runs.
create materialized view costs_of_errors as
select queue, error_class, error_shape, sum(runs) as runs, sum(run_s_total) / 3600 as hours,
       try_divide(sum(run_s_total), sum(sum(run_s_total)) over (partition by queue)) as share
from errors
group by queue, error_class, error_shape;

-- Downstream of the other flow: hours of workers for each hundred starts in time.
create materialized view dear_promises as
select queue, try_divide(sum(worker_hours), sum(kept)) * 100 as hours_each_hundred
from promises_by_day
group by queue
having sum(kept) > 0;

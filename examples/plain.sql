-- All behaviour is in SQL functions: any language that speaks to PostgreSQL can push, claim and settle.

select penstock.create_queue('sql-mail', p_sla => '30 seconds', p_max_attempts => 5,
                             p_retry => '{"type": "fibonacci", "unit": 60}', p_exist_ok => true);

select * from penstock.push('sql-mail', '{"to": "ann@example.com"}', p_subject => 'welcome:ann');
select * from penstock.push_many('sql-mail', array['{"to": "ben@example.com"}', '{"to": "cay@example.com"}']);

-- A claim is a transaction of its own. It returns the token, and the tasks that are yours until the lease ends.
create temporary table claimed as select * from penstock.claim('sql-mail', 10, p_worker => 'psql');

-- One row per task: its state now, or refused if the lease was lost.
select s.* from (select token, array_agg(id) as ids from claimed group by token) as c, penstock.settle(c.token, c.ids) as s;

select queue, pending, active, totals->>'done' as done from penstock.status('sql-mail');

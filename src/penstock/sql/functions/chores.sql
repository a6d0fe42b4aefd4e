-- Chores: work that only one session does at a time.

insert into penstock.chore (name) values ('drop_history'), ('expire_all'), ('make_history'), ('take_samples')
on conflict (name) do nothing;

-- Takes a chore until the transaction ends, and notes that it is done. Returns false if another session has it or,
-- where p_every is given, if it was done less than p_every ago. It never waits.
create or replace function penstock._take_chore(p_name text, p_every interval default null) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_now  constant timestamptz := penstock.clock();
    v_done timestamptz;
begin
    select c.done_at into v_done from penstock.chore as c where c.name = p_name for update skip locked;
    if not found then
        if not exists (select from penstock.chore as c where c.name = p_name) then
            perform penstock.refuse('PS404', format('chore: there is no %L', p_name), 'Add it to penstock.chore.');
        end if;
        return false;
    elsif v_done > v_now - p_every and v_done <= v_now then
        return false;
    end if;
    update penstock.chore as c set done_at = v_now where c.name = p_name;
    return true;
end
$$;

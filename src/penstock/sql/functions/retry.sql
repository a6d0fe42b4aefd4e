-- Retries: when a failed task is tried again. Strategies are data; retry.py computes the same delays (a property test
-- compares them).

-- Returns a pseudo-random number between 0 and 1, the same here and in Python. Neighbouring ids get very different
-- numbers.
create or replace function penstock.retry_spread(p_seed bigint, p_failures int) returns double precision
language sql immutable parallel safe set search_path = pg_catalog, pg_temp
return mod(mod(abs(p_seed), 2147483648) * 2654435761 + p_failures::bigint * 1013904223, 4294967296)
       / 4294967296.0::double precision;

-- Returns the seconds to wait after so many failures at that age, or null to stop trying.
create or replace function penstock.retry_delay(
    p_strategy jsonb, p_failures int, p_age interval default '0', p_seed bigint default 0
) returns interval
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    v_longest constant double precision := 10 * 365 * 86400.0;
    v_age     constant double precision := greatest(extract(epoch from p_age), 0);
    v_cap     constant double precision :=
        least(coalesce((p_strategy->>'cap')::double precision, v_longest), v_longest);
    v_seconds double precision;
    v_before  double precision := 0;
    v_swap    double precision;
    v_power   double precision;
begin
    if p_strategy is null or p_failures is null or p_failures < 1 then
        perform penstock.refuse('PS400',
            format('failures: %s is not a count of at least 1', coalesce(p_failures::text, 'null')));
    end if;

    case p_strategy->>'type'
    when 'fibonacci' then
        -- The delays are 1, 1, 2, 3, 5, 8, … units.
        v_seconds := (p_strategy->>'unit')::double precision;
        for i in 2 .. p_failures loop
            exit when v_seconds >= v_cap;
            v_swap := v_seconds;
            v_seconds := v_seconds + v_before;
            v_before := v_swap;
        end loop;

    when 'exponential' then
        v_seconds := (p_strategy->>'base')::double precision;
        v_power := coalesce((p_strategy->>'factor')::double precision, 2);
        -- Logarithms are compared first: the power itself would overflow long before failures run out.
        if v_seconds > 0 and (p_failures - 1) * ln(v_power) >= ln(v_cap / v_seconds) then
            v_seconds := v_cap;
        else
            v_seconds := v_seconds * power(v_power, p_failures - 1);
        end if;

    when 'fixed' then
        v_seconds := (p_strategy->>'delay')::double precision;

    when 'delays' then
        v_seconds := (p_strategy->'delays'->>(p_failures - 1))::double precision;

    when 'progressive' then
        select (t.tier->>1)::double precision into v_seconds
        from jsonb_array_elements(p_strategy->'tiers') with ordinality as t(tier, n)
        where v_age < (t.tier->>0)::double precision
        order by t.n limit 1;

    else
        perform penstock.refuse('PS400', format('retry: type %s is not known', coalesce(p_strategy->>'type', 'null')),
            'Types are fibonacci, progressive, exponential, fixed and delays.');
    end case;

    if v_seconds is null then
        return null;    -- the delays have ended, or the task is older than every tier
    end if;
    v_seconds := least(v_seconds, v_cap);
    -- A smaller jitter adds nothing to 1, and may underflow.
    if v_seconds > 0 and (p_strategy->>'jitter')::double precision > 1e-100 then
        v_seconds := v_seconds * (1 + (p_strategy->>'jitter')::double precision
                                      * (2 * penstock.retry_spread(p_seed, p_failures) - 1));
    end if;
    return make_interval(secs => v_seconds);
end
$$;

-- Refuses a strategy that cannot be followed later, when a task has failed.
create or replace function penstock._check_retry(p_strategy jsonb) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
    v_least   constant numeric := 0.000001;
    v_longest constant numeric := 3650 * 86400;
    v_good    boolean;
begin
    v_good := case p_strategy->>'type'
        when 'fibonacci' then penstock._is_number(p_strategy->'unit', v_least, v_longest)
        when 'exponential' then penstock._is_number(p_strategy->'base', v_least, v_longest)
                            and (not p_strategy ? 'factor' or penstock._is_number(p_strategy->'factor', 1, 1000))
        when 'fixed' then penstock._is_number(p_strategy->'delay', v_least, v_longest)
        when 'delays' then case when jsonb_typeof(p_strategy->'delays') = 'array' then (
            select count(*) between 1 and 1000 and bool_and(penstock._is_number(d.value, v_least, v_longest))
            from jsonb_array_elements(p_strategy->'delays') as d) end
        when 'progressive' then case when jsonb_typeof(p_strategy->'tiers') = 'array' then (
            select count(*) between 1 and 100
               and bool_and(penstock._is_number(t.value->0, v_least, 10 * v_longest)
                            and penstock._is_number(t.value->1, v_least, v_longest))
            from jsonb_array_elements(p_strategy->'tiers') as t) end
        end;
    if v_good is not true
       or (p_strategy ? 'cap' and not penstock._is_number(p_strategy->'cap', v_least, v_longest))
       or (p_strategy ? 'jitter' and not penstock._is_number(p_strategy->'jitter', 0, 1)) then
        perform penstock.refuse('PS400',
            format('retry: %s is not a strategy', coalesce(left(p_strategy::text, 80), 'null')),
            'One of {"type": "fibonacci", "unit": s}, {"type": "exponential", "base": s, "factor": f}, '
            '{"type": "fixed", "delay": s}, {"type": "delays", "delays": [s, …]}, '
            '{"type": "progressive", "tiers": [[younger than, s], …]}, with "cap" and "jitter".');
    end if;
end
$$;

create or replace function penstock._is_number(p_value jsonb, p_least numeric, p_most numeric) returns boolean
language sql immutable parallel safe
return case when jsonb_typeof(p_value) = 'number' then p_value::numeric between p_least and p_most else false end;

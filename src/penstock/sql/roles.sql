-- Roles and their rights. Roles belong to the whole cluster and are shared by all databases in it; no session logs in
-- as one.
do $$
declare
    v_role text;
begin
    foreach v_role in array array['penstock_producer', 'penstock_worker', 'penstock_reader', 'penstock_admin'] loop
        if not exists (select from pg_catalog.pg_roles as r where r.rolname = v_role) then
            begin
                execute pg_catalog.format('create role %I nologin', v_role);
            exception when duplicate_object or unique_violation then
                null;    -- the init of another database made it just now
            end;
        end if;
    end loop;

    -- An administrator may do everything that the other roles may.
    foreach v_role in array array['penstock_producer', 'penstock_worker', 'penstock_reader'] loop
        if not pg_catalog.pg_has_role('penstock_admin', v_role, 'member') then
            begin
                execute pg_catalog.format('grant %I to penstock_admin', v_role);
            exception when unique_violation then
                null;
            end;
        end if;
    end loop;
end
$$;

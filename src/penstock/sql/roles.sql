-- Roles and their rights. Roles belong to the whole cluster and are shared by all databases in it; no session logs in
-- as one.
do $$
declare
    v_role   text;
    v_member text;
begin
    foreach v_role in array array['penstock_producer', 'penstock_worker', 'penstock_reader', 'penstock_operator',
                                'penstock_admin'] loop
        if not exists (select from pg_catalog.pg_roles as r where r.rolname = v_role) then
            begin
                execute pg_catalog.format('create role %I nologin', v_role);
            exception when duplicate_object or unique_violation then
                null;    -- the init of another database made it just now
            end;
        end if;
    end loop;

    -- An operator may read what a reader may. An administrator may do everything that the other roles may.
    for v_role, v_member in
        values ('penstock_reader', 'penstock_operator'), ('penstock_producer', 'penstock_admin'),
               ('penstock_worker', 'penstock_admin'), ('penstock_reader', 'penstock_admin'),
               ('penstock_operator', 'penstock_admin')
    loop
        if not exists (
            select from pg_catalog.pg_auth_members as m
            where m.roleid = v_role::pg_catalog.regrole and m.member = v_member::pg_catalog.regrole) then
            begin
                execute pg_catalog.format('grant %I to %I', v_role, v_member);
            exception when unique_violation then
                null;
            end;
        end if;
    end loop;
end
$$;

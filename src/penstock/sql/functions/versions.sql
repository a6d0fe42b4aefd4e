-- What a client and `penstock init` have to know of these functions before they call or replace them.

-- Returns the version of the contract with clients. It grows when clients have to call a function in another way, when
-- a result changes, or when clients need a function that the schema did not have.
create or replace function penstock.contract() returns int
language sql immutable parallel safe
return 6;

-- Returns the contract of the oldest clients that these functions serve. A client works with this schema if its own
-- contract is at least this one and at most penstock.contract(). A new contract serves the one before it for one
-- release, unless the changelog says otherwise.
create or replace function penstock.oldest_client() returns int
language sql immutable parallel safe
return 6;

-- Returns the revision of the functions, which grows with each change of their text. `penstock init` never replaces
-- functions by those of an earlier revision. `make schema` raises it.
create or replace function penstock.revision() returns int
language sql immutable parallel safe
return 14;

-- The lake's tables as they are stored. `day` comes from the path.
create temporary view minutes as select * from parquet.`LAKE/gold/minutes`;
create temporary view errors as select * from parquet.`LAKE/gold/errors`;

"""The SQL of the library: a template for each statement, by subject, with the reason for its shape.

They are texts, made once: building a query with Peewee takes longer than running it. A template holds what is the same
on PostgreSQL and SQLite; a template whose name ends with _POSTGRES or _SQLITE is for that database only.
`statements.py` fills in the placeholders:

    {now}             the database's clock, the only clock that decides what is due or expired
    {after}           {now} plus a parameter in seconds
    {before}          {now} minus a parameter in seconds
    {moment}          a parameter that is a timestamp or null
    {is_same}         "equals, or both are null"
    {ids}             "id is in this list", the list being one parameter
    {async_commit}    true; and PostgreSQL does not wait for the disk when the transaction commits
    {in_list}(…){end} "is in the list that this subquery returns"
    {…_table}         the name of a table (`table_names.py`)
    ?                 a parameter

Claims, and the statements that end them, are committed asynchronously: losing one in a crash of the database only means
that an event is delivered again. The statement itself says so: a setting of the connection would also apply to the
application's own commits.

Two rules hold everywhere. A statement that settles, renews or gives back an event says `AND lease_id = ?`: only the
holder of the current lease may do that, and the row count tells how many events still had that lease. And no index
mentions `status`, `attempts`, `lease_*` or `updated_at`, so that on PostgreSQL a claim, a renewal and a give-back are
HOT updates.
"""

-- Run once, by the first start of the postgres container: a database for each system.
CREATE DATABASE mappa;
CREATE DATABASE mlflow;
CREATE DATABASE prefect;
\connect prefect
CREATE EXTENSION IF NOT EXISTS pg_trgm;

-- Run once by the images of MySQL and MariaDB, when they prepare their data. Our tables live in a
-- database of their own; reading the binlog is a right on the whole server.
CREATE DATABASE IF NOT EXISTS eventlog CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
GRANT ALL ON eventlog.* TO 'app'@'%';
GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'app'@'%';

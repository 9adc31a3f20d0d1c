// Package containers tests the product as its images: the Dockerfile, the
// compose file with each of its databases, and the dispatcher beside a
// PostgreSQL in containers. It has only tests.
//
// Where a container engine answers, the images are made on the spot, because a
// test must not depend on a registry: PostgreSQL, MySQL and MariaDB from the
// trees that scripts/install-servers.sh made (mysqlimage is the entry point of
// the latter two), our own programs from the Dockerfile. Where none answers, the
// same programs run as processes beside local PostgreSQL binaries. Either way the
// output says which.
package containers

// Package containers tests the product as its images: the Dockerfile, the
// compose file, and the dispatcher beside a PostgreSQL in containers. It has
// only tests.
//
// Where a container engine answers, the images are made on the spot, because a
// test must not depend on a registry: PostgreSQL from the tree that
// scripts/install-servers.sh made, our own programs from the Dockerfile. Where
// none answers, the same tests run the same programs as processes, beside local
// server binaries. Either way the output says which.
package containers

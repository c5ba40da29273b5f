// CoreDNS with the few plugins that a cluster's DNS needs: it runs beside the cluster, not in a pod.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	// A query passes the plugins in this order.
	dnsserver.Directives = []string{"bind", "errors", "health", "ready", "cache", "loadbalance", "kubernetes", "forward"}
	coremain.Run()
}

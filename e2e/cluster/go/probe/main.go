// What a pod sees of its cluster: tests run this program in pods and read its output.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const usage = "usage: probe serve | get URL | resolve NAME | write FILE TEXT | read FILE"

// A connection that a policy drops never answers; one that is allowed answers in milliseconds.
const patience = 2 * time.Second

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	switch {
	case len(arguments) == 1 && arguments[0] == "serve":
		return serve()
	case len(arguments) == 2 && arguments[0] == "get":
		return get(arguments[1])
	case len(arguments) == 2 && arguments[0] == "resolve":
		return resolve(arguments[1])
	case len(arguments) == 3 && arguments[0] == "write":
		return os.WriteFile(arguments[1], []byte(arguments[2]), 0o644)
	case len(arguments) == 2 && arguments[0] == "read":
		text, err := os.ReadFile(arguments[1])
		fmt.Print(string(text))
		return err
	}
	return fmt.Errorf("%s", usage)
}

// serve answers with the pod's name, until the pod ends.
func serve() error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	server := &http.Server{Addr: ":8080", Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, name)
	})}
	go func() {
		<-stop.Done()
		server.Close()
	}()
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		return err
	}
	return nil
}

func get(url string) error {
	response, err := (&http.Client{Timeout: patience}).Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(os.Stdout, response.Body)
	return err
}

func resolve(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(ctx, name)
	fmt.Print(strings.Join(addresses, " "))
	return err
}

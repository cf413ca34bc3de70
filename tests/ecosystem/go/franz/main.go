// Consume-transform-produce with franz-go: a transaction per poll, the first of which is aborted.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	servers, source, target, group := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	wanted, err := strconv.Atoi(os.Args[5])
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Second)
	defer cancel()
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(servers),
		kgo.TransactionalID(group),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DefaultProduceTopic(target),
		kgo.RequireStableFetchOffsets(),
	)
	check(err)
	defer session.Close()
	for done, attempt := 0, 0; done < wanted; attempt++ {
		fetches := session.PollFetches(ctx)
		check(fetches.Err())
		if fetches.NumRecords() == 0 {
			continue
		}
		check(session.Begin())
		fetches.EachRecord(func(record *kgo.Record) {
			value := strings.ToUpper(string(record.Value))
			session.Produce(ctx, &kgo.Record{Key: record.Key, Value: []byte(value)}, func(_ *kgo.Record, err error) {
				if attempt > 0 { // what is not sent yet when a transaction is aborted fails
					check(err)
				}
			})
		})
		committed, err := session.End(ctx, kgo.TransactionEndTry(attempt > 0))
		check(err)
		if committed {
			done += fetches.NumRecords()
		}
	}
	fmt.Println("done")
}

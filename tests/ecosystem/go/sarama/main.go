// Consume-transform-produce with sarama: a transaction per record, the first of which is aborted.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/IBM/sarama"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type pipeline struct {
	producer sarama.SyncProducer
	target   string
	group    string
	wanted   int
	finished context.CancelFunc
}

func (p *pipeline) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (p *pipeline) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (p *pipeline) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for record := range claim.Messages() {
		if record.Offset == 0 {
			check(p.producer.BeginTxn())
			p.send("never seen")
			check(p.producer.AbortTxn())
		}
		check(p.producer.BeginTxn())
		p.send(strings.ToUpper(string(record.Value)))
		check(p.producer.AddMessageToTxn(record, p.group, nil))
		check(p.producer.CommitTxn())
		p.wanted--
		if p.wanted == 0 {
			p.finished()
			return nil
		}
	}
	return nil
}

func (p *pipeline) send(value string) {
	_, _, err := p.producer.SendMessage(&sarama.ProducerMessage{Topic: p.target, Value: sarama.StringEncoder(value)})
	check(err)
}

func main() {
	servers, source, target, group := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	wanted, err := strconv.Atoi(os.Args[5])
	check(err)
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Transaction.ID = group
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer([]string{servers}, config)
	check(err)
	consumer, err := sarama.NewConsumerGroup([]string{servers}, group, config)
	check(err)
	ctx, finished := context.WithCancel(context.Background())
	handler := &pipeline{producer, target, group, wanted, finished}
	for ctx.Err() == nil {
		check(consumer.Consume(ctx, []string{source}, handler))
	}
	check(consumer.Close())
	check(producer.Close())
	fmt.Println("done")
}
